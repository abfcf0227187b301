"""What a receiver saw, counted: which runs were called, lost, doubled or early, and how late they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from engine.rules.lag import percentile


class Call(NamedTuple):
    """One request as the receiver recorded it; ``status`` is what it answered, 0 if nothing."""

    arrival_ms: int
    key: str
    attempt: int
    scheduled_at_ms: int
    name: str = ""
    status: int = 200

    @property
    def answered_well(self) -> bool:
        return 200 <= self.status < 300


Run = tuple[str, int]
"""What was expected: a job's name and a scheduled time in milliseconds."""


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of runs, except ``doubled`` and ``early``, which count calls. Lag: first arrival minus scheduled time."""

    expected: int
    called: int
    lost: int
    doubled: int
    early: int
    lag_p50_ms: int
    lag_p99_ms: int
    lag_max_ms: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @property
    def flawless(self) -> bool:
        return self.lost == self.doubled == self.early == 0


def report(calls: Iterable[Call], expected: Collection[Run] = ()) -> Report:
    """Count one record. With nothing expected, what was called is all there was."""
    ordered = sorted(calls, key=lambda call: (call.arrival_ms, call.attempt))
    called = {(call.name, call.scheduled_at_ms) for call in ordered}
    wanted = set(expected) or called
    lags = first_lags(ordered)
    return Report(
        expected=len(wanted),
        called=len(called),
        lost=len(wanted - called),
        doubled=count_doubled(ordered),
        early=sum(call.arrival_ms < call.scheduled_at_ms for call in ordered),
        lag_p50_ms=percentile(lags, 50),
        lag_p99_ms=percentile(lags, 99),
        lag_max_ms=percentile(lags, 100),
    )


def reports(
    calls: Iterable[Call], expected: Collection[Run], group_of: Callable[[str], str] = lambda name: name
) -> dict[str, Report]:
    """The same for each group of jobs: by default for each name; ``group_of`` may cut names down to a priority."""
    calls_by: dict[str, list[Call]] = {}
    expected_by: dict[str, list[Run]] = {}
    for call in calls:
        calls_by.setdefault(group_of(call.name), []).append(call)
    for run in expected:
        expected_by.setdefault(group_of(run[0]), []).append(run)
    groups = sorted(calls_by.keys() | expected_by.keys())
    return {group: report(calls_by.get(group, ()), expected_by.get(group, ())) for group in groups}


def count_doubled(ordered: Iterable[Call]) -> int:
    """Calls of a key that had already been answered with 2xx: what a retry after a failure is not."""
    done: set[str] = set()
    doubled = 0
    for call in ordered:
        doubled += call.key in done
        if call.answered_well:
            done.add(call.key)
    return doubled


def first_lags(ordered: Iterable[Call]) -> Counter[int]:
    """How many runs first arrived how many milliseconds after their scheduled time."""
    first: dict[str, int] = {}
    for call in ordered:
        first.setdefault(call.key, call.arrival_ms - call.scheduled_at_ms)
    return Counter(first.values())
