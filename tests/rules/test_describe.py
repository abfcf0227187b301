"""What expressions say in English."""

import pytest
from hypothesis import assume, given

from engine._native.cron import ExpressionError
from engine.rules.describe import describe
from tests.support.cron_text import EXPRESSIONS


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("* * * * *", "Every minute."),
        ("* * * * * *", "Every second."),
        ("@hourly", "At minute 0 of every hour."),
        ("@daily", "At 00:00."),
        ("@WEEKLY", "At 00:00 on Sunday."),
        ("@yearly", "At 00:00 on the 1st of the month, in January."),
        ("0 9 * * 1-5", "At 09:00 on Monday to Friday."),
        ("30 0 9 * * *", "At 09:00:30."),
        ("0,30 9,17 * * *", "At 09:00, 09:30, 17:00 and 17:30."),
        ("*/15 9-17 * * MON-FRI", "Every 15 minutes of hours 9 to 17 on Monday to Friday."),
        ("*/7 * * * *", "Every 7th minute from 0 to 56."),
        ("0 0-23 * * *", "At minute 0 of every hour."),
        ("* 9 * * *", "Every minute of hour 9."),
        ("5,10,30-40 8,20 * * *", "At minutes 5, 10 and 30 to 40 of hours 8 and 20."),
        ("*/2 * * * * *", "Every 2 seconds."),
        ("30 */2 * * * *", "At second 30 of every 2 minutes."),
        ("* 1 * * * ?", "Every second of minute 1 of every hour."),
        ("0 0 L * ?", "At 00:00 on the last day of the month."),
        ("0 0 L-3 * *", "At 00:00 on the 3rd day before the last of the month."),
        ("0 0 LW * *", "At 00:00 on the last weekday (Monday to Friday) of the month."),
        ("0 0 15W * *", "At 00:00 on the weekday (Monday to Friday) nearest to the 15th of the month."),
        ("0 0 1-7,11,22 * *", "At 00:00 on the 1st to the 7th, the 11th and the 22nd of the month."),
        ("0 0 */2 * *", "At 00:00 on every 2nd day from the 1st to the 31st of the month."),
        ("0 0 * * FRI#2,MONL", "At 00:00 on the 2nd Friday of the month and the last Monday of the month."),
        ("0 0 * * 5-7", "At 00:00 on Friday to Sunday."),
        ("30 4 1,15 * 5", "At 04:30 on the 1st and the 15th of the month or on Friday."),
        ("0 0 1-31 * 1", "At 00:00 on the 1st to the 31st of the month or on Monday."),
        ("0 16 */31 * SAT,SUN", "At 16:00 on the 1st of the month, but only if that is Saturday or Sunday."),
        ("0 0 13 * */5", "At 00:00 on the 13th of the month, but only if that is Friday or Sunday."),
        ("0 0 */1 * 5", "At 00:00 on Friday."),
        ("0 0 1 */3 *", "At 00:00 on the 1st of the month, in January, April, July and October."),
    ],
)
def test_the_sentence(expression: str, sentence: str) -> None:
    assert describe(expression) == sentence


@given(EXPRESSIONS)
def test_every_expression_has_one_sentence(expression: str) -> None:
    try:
        sentence = describe(expression)
    except ExpressionError:
        assume(False)
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "  " not in sentence


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(ExpressionError):
        describe("every day")
