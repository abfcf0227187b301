"""Waiting on a condition with a deadline, instead of sleeping and hoping: the one place where the tests sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 20.0
PAUSE_S = 0.01


def until(condition: Callable[[], T], seconds: float = DEADLINE_S) -> T:
    """Ask again until the condition is true; returns what it answered, or fails with its last answer."""
    ends = time.monotonic() + seconds
    while not (answer := condition()):
        _check(ends, seconds, condition, answer)
        time.sleep(PAUSE_S)
    return answer


async def until_async(condition: Callable[[], T], seconds: float = DEADLINE_S) -> T:
    """The same, while the event loop goes on."""
    ends = time.monotonic() + seconds
    while not (answer := condition()):
        _check(ends, seconds, condition, answer)
        await asyncio.sleep(PAUSE_S)
    return answer


async def until_answered(ask: Callable[[], Awaitable[T]], seconds: float = DEADLINE_S) -> T:
    """The same of a condition that is waited for itself."""
    ends = time.monotonic() + seconds
    while not (answer := await ask()):
        _check(ends, seconds, ask, answer)
        await asyncio.sleep(PAUSE_S)
    return answer


def _check(ends: float, seconds: float, condition: Callable[[], object], answer: object) -> None:
    if time.monotonic() > ends:
        raise AssertionError(f"still {answer!r} after {seconds} s: {getattr(condition, '__name__', condition)}")
