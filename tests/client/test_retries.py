"""When a call is tried again: only where a second effect would be none, and never before Retry-After."""

from __future__ import annotations

from itertools import accumulate

import pytest

from secondzero_client import RetryPolicy
from secondzero_client.retries import NoAnswer, Tries, retry_after_s

NOW_S = 1_900_000_000.0
POLICY = RetryPolicy(total_s=60, first_pause_s=1, pause_s_max=8)
NEVER_SENT, LOST = NoAnswer(OSError(), sent=False), NoAnswer(OSError(), sent=True)


@pytest.mark.parametrize(
    ("outcome", "repeatable", "again"),
    [
        (200, True, False),
        (404, True, False),
        (409, True, False),
        (500, True, False),
        (429, True, True),
        (429, False, True),
        (502, True, True),
        (503, True, True),
        (503, False, False),
        (504, False, False),
        (NEVER_SENT, False, True),
        (LOST, False, False),
        (LOST, True, True),
    ],
)
def test_a_call_is_tried_again_where_that_is_safe(outcome: int | NoAnswer, repeatable: bool, again: bool) -> None:
    pause_s = Tries(POLICY, repeatable, NOW_S).pause_s(outcome, None, NOW_S, lambda: 0.5)
    assert (pause_s is not None) == again


@pytest.mark.parametrize(("outcome", "maybe_done"), [(429, False), (NEVER_SENT, False), (503, True), (LOST, True)])
def test_it_is_known_whether_a_try_may_have_had_its_effect(outcome: int | NoAnswer, maybe_done: bool) -> None:
    tries = Tries(POLICY, True, NOW_S)
    tries.pause_s(outcome, None, NOW_S, lambda: 0.5)
    assert tries.maybe_done is maybe_done


def test_pauses_grow_to_their_bound_and_end_with_the_time() -> None:
    tries, now_s, pauses = Tries(POLICY, True, NOW_S), NOW_S, []
    while (pause_s := tries.pause_s(503, None, now_s, lambda: 0.999)) is not None:
        pauses.append(round(pause_s))
        now_s += pause_s
    assert pauses[:5] == [1, 2, 4, 8, 8]
    assert 60 - 8 < list(accumulate(pauses))[-1] <= 60


def test_retry_after_is_a_floor_below_the_draw() -> None:
    assert Tries(POLICY, True, NOW_S).pause_s(503, 5.0, NOW_S, lambda: 0.5) == 5.5
    assert Tries(POLICY, True, NOW_S).pause_s(503, 60.0, NOW_S, lambda: 0.5) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("\u0661", None),
        (" 7 ", 7),
        ("9" * 400, 24 * 3600),
        ("Sun, 17 Mar 2030 17:46:50 GMT", 10),
        ("Sun, 17 Mar 2030 17:46:50 -0000", 10),
        ("Sun, 17 Mar 2030 17:46:30 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 24 * 3600),
    ],
)
def test_retry_after_is_read_in_both_its_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW_S) == seconds
