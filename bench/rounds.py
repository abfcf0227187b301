"""Several ways to compute the same, timed in turns and in CPU time: a busy machine hits all of them, and little."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from statistics import median

from engine.clock import cpu_ns

Progress = Callable[[str], None]


def median_s(rounds: int, progress: Progress, **ways: Callable[[], object]) -> dict[str, float]:
    """CPU seconds of each way: the median of so many rounds."""
    spent_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        for name, way in ways.items():
            spent_s[name].append(once_s(way))
            progress(f"round {number} of {rounds}: {name} {spent_s[name][-1]:.3f} s")
    return {name: median(spans_s) for name, spans_s in spent_s.items()}


def once_s(way: Callable[[], object]) -> float:
    """CPU seconds of one call, without the garbage collector, which would visit the objects of all ways."""
    gc.collect()
    gc.disable()
    try:
        start_ns = cpu_ns()
        way()
        return (cpu_ns() - start_ns) / 1e9
    finally:
        gc.enable()


def count(text: str) -> int:
    """An argument that is a number of things: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)
