"""An English sentence that says when a cron expression fires."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from engine._native.cron import compile_expression

UNIT_SIZES = {"second": 60, "minute": 60, "hour": 24}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
CLOCK_TIMES_MAX = 6  # more are told by their fields
PROGRESSION_MIN = 4  # so many values at one distance from each other are told by that distance
SPAN_MIN = 3  # so many neighbours are told by the first and the last


def describe(expression: str) -> str:
    """`0 9 * * 1-5` is `At 09:00 on Monday to Friday.` Raises ExpressionError for what is no expression."""
    (seconds, minutes, hours, months), dates, weekdays, either = compile_expression(expression).parts()
    clock = _clock(_values(seconds), _values(minutes), _values(hours))
    text = f"{clock}{_days(dates, weekdays, either)}{_months(_values(months))}."
    return text[0].upper() + text[1:]


def _values(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _clock(seconds: list[int], minutes: list[int], hours: list[int]) -> str:
    if len(seconds) * len(minutes) * len(hours) <= CLOCK_TIMES_MAX:
        return "at " + _listed([_clock_time(h, m, s) for h in hours for m in minutes for s in seconds])
    units = [("second", seconds), ("minute", minutes), ("hour", hours)]
    return _told(units[1:] if seconds == [0] else units)


def _clock_time(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def _told(units: Sequence[tuple[str, list[int]]]) -> str:
    """The smallest unit first: `every 15 minutes of hours 9 to 17`. What one `every` says is not said again."""
    phrases: list[str] = []
    for unit, values in units:
        phrase = _unit_phrase(unit, values)
        if not (phrases and phrases[-1].startswith("every") and phrase == f"every {unit}"):
            phrases.append(phrase)
    return ("" if phrases[0].startswith("every") else "at ") + " of ".join(phrases)


def _unit_phrase(unit: str, values: list[int]) -> str:
    step = _step_of(values)
    if step * len(values) == UNIT_SIZES[unit] and values[0] == 0:
        return f"every {unit}" if step == 1 else f"every {step} {unit}s"
    if step > 1 and len(values) >= PROGRESSION_MIN:
        return f"every {_ordinal(step)} {unit} from {values[0]} to {values[-1]}"
    return f"{unit}{'s' if len(values) > 1 else ''} {_listed(_spans(values, str))}"


def _step_of(values: list[int]) -> int:
    """The distance between neighbours; 0 unless it is one and the same."""
    steps = {high - low for low, high in pairwise(values)}
    return steps.pop() if len(steps) == 1 else 0


def _days(dates: tuple[int, int, int, bool], weekdays: tuple[int, int, list[int]], either: bool) -> str:
    by_date, by_weekday = f"{_listed(_dates(*dates))} of the month", _weekdays(*weekdays)
    any_date, any_weekday = len(_values(dates[0])) == 31, len(_values(weekdays[0])) == 7
    if either:
        return f" on {by_date} or on {_listed(by_weekday)}"
    if any_date:
        return "" if any_weekday else f" on {_listed(by_weekday)}"
    return f" on {by_date}" + ("" if any_weekday else f", but only if that is {_listed(by_weekday, 'or')}")


def _dates(days: int, from_last: int, nearest: int, last_weekday: bool) -> list[str]:
    said = _plain_dates(_values(days))
    said += [f"the weekday (Monday to Friday) nearest to the {_ordinal(day)}" for day in _values(nearest)]
    said += [f"the {_ordinal(n)} day before the last" if n else "the last day" for n in _values(from_last)]
    return said + ["the last weekday (Monday to Friday)"] * last_weekday


def _plain_dates(days: list[int]) -> list[str]:
    step = _step_of(days)
    if step > 1 and len(days) >= PROGRESSION_MIN:
        return [f"every {_ordinal(step)} day from the {_ordinal(days[0])} to the {_ordinal(days[-1])}"]
    return _spans(days, lambda day: f"the {_ordinal(day)}")


def _weekdays(weekdays: int, last_of: int, nth: list[int]) -> list[str]:
    monday_first = sorted(day or 7 for day in _values(weekdays))
    said = _spans(monday_first, lambda day: WEEKDAYS[day % 7])
    said += [f"the {_ordinal(week)} {WEEKDAYS[day]} of the month" for day in range(7) for week in _values(nth[day])]
    return said + [f"the last {WEEKDAYS[day]} of the month" for day in _values(last_of)]


def _months(months: list[int]) -> str:
    return "" if len(months) == 12 else f", in {_listed(_spans(months, lambda month: MONTHS[month - 1]))}"


def _spans(values: list[int], name: Callable[[int], str]) -> list[str]:
    """Names of the values, neighbours drawn together: `9 to 17`."""
    said: list[str] = []
    while values:
        length = next((at for at, value in enumerate(values) if value != values[0] + at), len(values))
        span, values = values[:length], values[length:]
        said += [f"{name(span[0])} to {name(span[-1])}"] if length >= SPAN_MIN else [name(value) for value in span]
    return said


def _listed(words: Sequence[str], last_joint: str = "and") -> str:
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {last_joint} {words[-1]}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
