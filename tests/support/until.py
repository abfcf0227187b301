"""Waiting on a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 20.0
PAUSE_S = 0.02


def until(condition: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Ask again until the condition is true; returns what it answered, or fails with its last answer."""
    ends = time.monotonic() + deadline_s
    while not (answer := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"still {answer!r} after {deadline_s} s: {getattr(condition, '__name__', condition)}")
        time.sleep(PAUSE_S)
    return answer
