"""Rollups: how many runs of a job or a tenant ended how in a span of time, and how late and long they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine.model import HOUR_MS, RunState
from engine.rows import EndRow
from engine.store.connection import Connection
from engine.store.lists import Named
from engine.store.shard import Shard

# A job with so many runs in an hour has a row for it. Those of fewer are read: 8,000 in 30 days at most, some 10 ms.
RUNS_MIN = 12

# An hour with something open, or something new, is counted anew after this at the earliest.
RECOUNT_MS = 300_000

# Runs of a job that are read one by one at most, of each stretch that is not rolled up: some 20 ms.
ROWS_READ_MAX = 20_000

ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED)


class Sums(NamedTuple):
    """Ended runs by outcome; lag and duration are those of the called ones."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    called: int = 0
    lag_sum_ms: int = 0
    lag_max_ms: int = 0
    duration_sum_ms: int = 0
    duration_max_ms: int = 0

    @classmethod
    def of(cls, columns: Iterable[object]) -> Sums:
        """Of a row; MySQL's sums are decimals."""
        return cls(*(int(column) for column in columns))  # type: ignore[call-overload]

    @classmethod
    def of_ends(cls, ends: Sequence[EndRow]) -> Sums:
        """Of runs one by one."""
        of_state = [[run.state for run in ends].count(end) for end in ENDS]
        called = [run for run in ends if run.started_at_ms is not None]
        lags = [(run.started_at_ms or 0) - run.scheduled_at_ms for run in called]
        durations = [(run.finished_at_ms or 0) - (run.started_at_ms or 0) for run in called]
        sums = [sum(lags), max(lags, default=0), sum(durations), max(durations, default=0)]
        return cls.of([*of_state, len(called), *sums])

    def plus(self, other: Sums) -> Sums:
        sums = Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))
        return sums._replace(
            lag_max_ms=max(self.lag_max_ms, other.lag_max_ms),
            duration_max_ms=max(self.duration_max_ms, other.duration_max_ms),
        )


class Counted(NamedTuple):
    """The sums of a span. ``complete`` is False where there are more runs than could be looked at. ``left``: stretches
    [from, to) that are not in the sums: their runs are in Cassandra alone."""

    from_ms: int
    to_ms: int
    sums: Sums
    complete: bool = True
    left: Sequence[tuple[int, int]] = ()

    def plus(self, other: Counted) -> Counted:
        """Of the same span elsewhere: known to where both are."""
        to_ms, complete = min(self.to_ms, other.to_ms), self.complete and other.complete
        return Counted(self.from_ms, to_ms, self.sums.plus(other.sums), complete)


async def note_recounts(
    connection: Connection, runs: Iterable[tuple[int, int]], now_ms: int, bytes_max: int
) -> None:
    """Runs (partition, time) are put below the mark, or begin again there: their hours are to be counted anew."""
    hours = sorted({(partition_id, at_ms - at_ms % HOUR_MS, now_ms + RECOUNT_MS, 1) for partition_id, at_ms in runs})
    if hours:
        await connection.execute_rows("note_recounts", hours, bytes_max=bytes_max)


async def job_sums(shard: Shard, job: Named, spans: Sequence[tuple[int, int]]) -> list[Counted]:
    """What became of a job's runs in each span [from, to): its busy hours from the rollups, the others read.

    A span is longer than a few hours only where it begins with one."""
    counted, (floor,) = (
        answer.rows
        for answer in await shard.ask(("counted_to", {"partition_id": job.partition_id}), ("audit_floor", {}))
    )
    counted_to_ms, recorded_ms = counted[0] if counted else (0, 0)
    # Where runs are recorded elsewhere before they go, none is out of sight; else none is kept below the floor.
    floor_ms = 0 if recorded_ms else floor[0]
    # A time may lie a few minutes before its job was created.
    born_ms = job.created_at_ms - HOUR_MS
    first_ms = max(born_ms, min(from_ms for from_ms, _ in spans))
    hours = range(first_ms - first_ms % HOUR_MS, counted_to_ms, HOUR_MS)
    key = {"partition_id": job.partition_id, "job_id": job.job_id}
    rolled_up = (await shard.execute("busy_hours_of_job", {**key, "hours": hours})).rows
    busy = {row[0]: Sums.of(row[1:]) for row in rolled_up}
    found = []
    for from_ms, to_ms in spans:
        stretches = _Stretches(busy, max(from_ms, born_ms), to_ms, recorded_ms)
        counted_of_life = await _job_span(shard, key, stretches, floor_ms)
        found.append(counted_of_life._replace(from_ms=from_ms, to_ms=to_ms))
    return found


class _Stretches:
    """A span in parts: whole busy hours, which are summed; what is read ``here``; what has ``left``, below a time."""

    def __init__(self, busy: dict[int, Sums], from_ms: int, to_ms: int, recorded_ms: int) -> None:
        whole = [hour_ms for hour_ms in busy if from_ms <= hour_ms and hour_ms + HOUR_MS <= to_ms]
        self.sums = Sums()
        for hour_ms in whole:
            self.sums = self.sums.plus(busy[hour_ms])
        rest = list(_between(whole, from_ms, to_ms))
        self.here = [(max(first_ms, recorded_ms), until_ms) for first_ms, until_ms in rest if until_ms > recorded_ms]
        self.left = [(first_ms, min(until_ms, recorded_ms)) for first_ms, until_ms in rest if first_ms < recorded_ms]


def _between(hours: Iterable[int], from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
    """What of the span lies in none of these hours, which are in order."""
    for hour_ms in hours:
        if from_ms < hour_ms:
            yield from_ms, hour_ms
        from_ms = hour_ms + HOUR_MS
    if from_ms < to_ms:
        yield from_ms, to_ms


async def _job_span(shard: Shard, key: dict[str, int], stretches: _Stretches, floor_ms: int) -> Counted:
    """``complete`` is False too where runs would have to be read whose day is gone."""
    asked = [
        ("sum_runs_of_job", {**key, "from_at": first_ms, "to_at": until_ms, "rows_max": ROWS_READ_MAX})
        for first_ms, until_ms in stretches.here
    ]
    sums, complete = stretches.sums, all(first_ms >= floor_ms for first_ms, _ in stretches.here)
    for answer in await shard.ask(*asked) if asked else ():
        *columns, read = answer.rows[0]
        sums = sums.plus(Sums.of(columns))
        complete = complete and read < ROWS_READ_MAX
    return Counted(0, 0, sums, complete, stretches.left)


async def tenant_sums(shard: Shard, tenant_id: int, spans: Sequence[tuple[int, int]]) -> list[Counted]:
    """What became of a tenant's runs on one shard in each span [from, to) of whole hours, as far as it is counted."""
    asked = [
        ("sum_tenant_hours", {"tenant_id": tenant_id, "from_at": from_ms, "to_at": to_ms}) for from_ms, to_ms in spans
    ]
    seen, *summed = await shard.ask(("seen_to", {}), *asked)
    seen_to_ms = seen.rows[0][0] or 0
    return [
        Counted(from_ms, max(from_ms, min(to_ms, seen_to_ms)), Sums.of(answer.rows[0]))
        for (from_ms, to_ms), answer in zip(spans, summed, strict=True)
    ]
