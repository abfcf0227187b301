"""The timing wheel beside a heapq: timers added and given out in batches."""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Iterator

from bench.rounds import Progress, count, median_s
from engine._native.wheel import Wheel

NOW_MS = 1_800_000_000_000
HORIZON_MS = 30_000  # how far ahead runs are planned
BATCH = 2_000  # runs of one planning statement

Batches = list[tuple[int, list[int]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timers", type=count, default=1_000_000, metavar="N", help="added in a round (1,000,000)")
    parser.add_argument("--waiting", type=count, default=100_000, metavar="N", help="at any time (100,000)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="the median counts (5)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, float]:
    batches = due_times(args.timers, args.waiting)
    if list(by_wheel(batches)) != list(by_heapq(batches)):
        raise AssertionError("wheel and heapq disagree on what is due when")
    spent_s = median_s(
        args.rounds,
        progress,
        wheel=lambda: deque(by_wheel(batches), maxlen=0),
        heapq=lambda: deque(by_heapq(batches), maxlen=0),
    )
    operations = 2 * sum(len(dues_ms) for _, dues_ms in batches)  # each timer is added once and given out once
    return {
        "ops_per_s": operations / spent_s["wheel"],
        "heapq_ops_per_s": operations / spent_s["heapq"],
        "speedup": spent_s["heapq"] / spent_s["wheel"],
    }


def due_times(timers: int, waiting: int) -> Batches:
    """When each batch is added and when its timers are due: any millisecond within the horizon, so that on average
    ``waiting`` of them wait."""
    choose = random.Random(1)
    step_ms = max(1, HORIZON_MS * BATCH // (2 * waiting))
    batches = []
    for number, first in enumerate(range(0, timers, BATCH)):
        now_ms = NOW_MS + number * step_ms
        batches.append((now_ms, [now_ms + 1 + choose.randrange(HORIZON_MS) for _ in range(min(BATCH, timers - first))]))
    return batches


def by_wheel(batches: Batches) -> Iterator[list[int]]:
    wheel: Wheel[int] = Wheel(NOW_MS)
    for now_ms, dues_ms in batches:
        wheel.add_many(dues_ms, dues_ms)
        yield wheel.advance(now_ms)
    yield wheel.advance(batches[-1][0] + HORIZON_MS)


def by_heapq(batches: Batches) -> Iterator[list[int]]:
    heap: list[tuple[int, int]] = []
    for now_ms, dues_ms in batches:
        for due_ms in dues_ms:
            heapq.heappush(heap, (due_ms, due_ms))
        yield popped(heap, now_ms)
    yield popped(heap, batches[-1][0] + HORIZON_MS)


def popped(heap: list[tuple[int, int]], now_ms: int) -> list[int]:
    due = []
    while heap and heap[0][0] <= now_ms:
        due.append(heapq.heappop(heap)[1])
    return due
