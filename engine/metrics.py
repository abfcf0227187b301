"""What a process counts, from its events: a subscriber that adds up, and hands the sums on a few times a second.

Sums only ever grow; engine/metrics_page.py shows those of all processes of the host. Labels are bounded: steps,
states, kinds, priorities and statements of ours, never a tenant's or a job's name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# From a wheel's tick to the 20 minutes that low priority is promised.
LAG_BOUNDS_MS = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 60_000, 120_000, 300_000, 600_000, 1_200_000),
)
# A statement of 30 rows costs twice as much a row as a filled one.
BATCH_BOUNDS = (1, 3, 10, 30, 100, 300, 1_000, 2_000)


class Histogram:
    """Counts by upper bound (inclusive), the last one for all that is above them."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, values: Iterable[int]) -> None:
        for value, times in Counter(values).items():
            self.counts[bisect_left(self._bounds, value)] += times
            self.total += value * times


class Metrics:
    """Subscribe it to a process's events."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._lags: dict[int, Histogram] = {}
        self._attempts: Counter[str] = Counter()
        self._batches: dict[str, Histogram] = {}
        self._statements: dict[str, list[int]] = {}
        self._backlog: dict[int, dict[str, int | None]] = {}
        self._work: dict[int, dict[str, Any]] = {}
        self._work_ended: Counter[str] = Counter()
        self._record: dict[int, dict[str, int]] = {}
        self._takes: dict[str, Callable[[dict[str, Any]], None]] = {
            "run.planned": lambda fields: self._batch("plan", fields["runs"]),
            "run.claimed": lambda fields: self._batch("claim", fields["runs"]),
            "run.recorded": lambda fields: self._batch("record", fields["runs"]),
            "record.backlog": self._record_backlog,
            "run.settled": self._settled,
            "statement.ended": self._statement,
            "backlog.seen": self._backlog_seen,
            "work.seen": self._work_seen,
            "work.lapsed": lambda fields: self._work_ended.update(lapsed=fields["runs"]),
            "work.unclaimed": lambda fields: self._work_ended.update(unclaimed=fields["runs"]),
        }

    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        self._events[name] += 1
        take = self._takes.get(name)
        if take is not None:
            take(fields)

    def snapshot(self) -> dict[str, Any]:
        """All sums as plain JSON values."""
        return {
            "events": self._events,
            "lags_ms": {str(priority): [*lag.counts, lag.total] for priority, lag in self._lags.items()},
            "attempts": self._attempts,
            "batches": {step: [*batch.counts, batch.total] for step, batch in self._batches.items()},
            "statements": self._statements,
            "backlog": {str(shard): seen for shard, seen in self._backlog.items()},
            "work": {str(shard): seen for shard, seen in self._work.items()},
            "work_ended": self._work_ended,
            "record": {str(shard): seen for shard, seen in self._record.items()},
        }

    def _settled(self, fields: dict[str, Any]) -> None:
        self._batch("settle", fields["runs"])
        self._attempts.update(fields["ends"])
        for priority, lags_ms in fields["lags_ms"].items():
            self._lags.setdefault(priority, Histogram(LAG_BOUNDS_MS)).add(lags_ms)

    def _batch(self, step: str, runs: int) -> None:
        self._batches.setdefault(step, Histogram(BATCH_BOUNDS)).add([runs])

    def _statement(self, fields: dict[str, Any]) -> None:
        """Number and microseconds of each."""
        spent = self._statements.setdefault(fields["statement"], [0, 0])
        spent[0] += 1
        spent[1] += fields["us"]

    def _backlog_seen(self, fields: dict[str, Any]) -> None:
        self._backlog[fields["shard"]] = {"age_ms": fields["age_ms"], "ahead_ms": fields["ahead_ms"]}

    def _work_seen(self, fields: dict[str, Any]) -> None:
        self._work[fields["shard"]] = {key: fields[key] for key in ("ready", "age_ms", "doors")}

    def _record_backlog(self, fields: dict[str, Any]) -> None:
        self._record[fields["shard"]] = {"age_ms": fields["age_ms"], "runs": fields["runs"]}
