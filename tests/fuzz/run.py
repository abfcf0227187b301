"""Runs one target for a time: new input in every round, the smallest failing one told as hypothesis does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

# Short enough to end in time, long enough that hypothesis gets anywhere within one.
ROUND_EXAMPLES = 200
# Making a case costs a hundred times what checking it does.
VARIANTS = 20


class Target(NamedTuple):
    """``check`` raises for a case that shows a fault. ``vary`` makes another case of one, with a few bytes changed."""

    cases: SearchStrategy[Any]
    check: Callable[[Any], None]
    vary: Callable[[Any, random.Random], Any] | None = None


def run(target: Target, seconds: float, *, shrink: bool = True) -> int:
    """How often the target was tried in this time; what a case raises comes through with the case, made small first."""
    tried = 0

    def check(case: Any, number: int) -> None:
        nonlocal tried
        for varied in _with_variants(target, case, random.Random(number)):
            tried += 1
            try:
                target.check(varied)
            except Exception as error:
                error.add_note(f"for {varied!r}")
                raise

    one_round = settings(
        max_examples=ROUND_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
    )
    ends_s = time.monotonic() + seconds
    while tried == 0 or time.monotonic() < ends_s:
        seed(random.randrange(1 << 64))(one_round(given(target.cases, st.integers(0, 1 << 32))(check)))()
    return tried


def _with_variants(target: Target, case: Any, draw: random.Random) -> Iterator[Any]:
    yield case
    for _ in range(VARIANTS if target.vary else 0):
        case = target.vary(case, draw)
        yield case


T = TypeVar("T", str, bytes)


def edited(text: T, draw: random.Random) -> T:
    """The text with a piece taken out, doubled, or put in elsewhere."""
    begin, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    end, at = min(end, begin + 4), draw.randrange(len(text) + 1)
    piece = text[begin:end]
    if draw.random() < 0.5:
        text = text[:begin] + text[end:]
    return text[:at] + piece + text[at:]
