"""Record, with history in Cassandra: the runs of a day that is closed are written there, then the day is dropped.

Nothing is open in a closed day, nor will be, so no row of it ever changes: it is walked once, partition by partition in
the order of the primary key, and how far that came is kept in MySQL. Two pieces are in memory at most, one being read
while the other is written, and each is bounded; what waits, waits in MySQL.

A dead letter that is retried after its day has gone stands in MySQL again, and is looked for by itself: once it has
ended it is written over what the history has of it.

A node acknowledges a row before its commit log is on its disk (10 s before, as Cassandra comes), and killed then it has
lost it. So what is noted in MySQL stays behind what is acknowledged: a piece counts as recorded once it has been there
for as long as a node may keep it from its disk, and then for as long as a node's loss may take to be noticed, and no
node was lost meanwhile. Else the recorder goes back to what it has noted, as it does when it was killed itself, and
writes the same rows under the same keys. To have each row on disk before its answer costs Cassandra twice the work.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from engine.clock import Clock
from engine.errors import HistoryUnavailable
from engine.events import Events
from engine.model import OPEN_STATES, RunKey, RunState
from engine.rows import AttemptRow, FinishedRun, Report, RunRow
from engine.stages.days import DAY_MS
from engine.store.connection import Row
from engine.store.shard import Shard
from engine.store.statements import Value, time_bounds

# A piece: as many runs as a statement of ours has rows, and no more than 7 MB of attempts and as
# much of reports: 170 MB of memory at the worst, with two pieces of two shards.
RUNS_MAX = 2_000
ATTEMPTS_MAX = 5_000
REPORTS_MAX = 100
# Runs of days that have gone, in one turn: each is read from the history first.
RETRIED_MAX = 200

# A recorder that is silent for this long beyond what it waits for has lost its partition. A piece takes a second, 20
# where Cassandra is slow.
LEASE_MS = 60_000


class Sink(Protocol):
    """Where finished runs go."""

    @property
    def losses(self) -> int:
        """How often a node was lost, or a write was not acknowledged."""

    async def write(self, runs: Sequence[FinishedRun]) -> None: ...

    async def write_again(self, runs: Sequence[FinishedRun]) -> None: ...


class Place(NamedTuple):
    """How far a partition is recorded: everything below (at, job) in the order of the key; how far it may be; and below
    which time the days have gone."""

    partition_id: int
    until_ms: int
    at_ms: int
    job_id: int
    gone_ms: int


class Piece(NamedTuple):
    """Runs in the order of the key, and the place behind them."""

    runs: Sequence[FinishedRun]
    after: Place


class Written(NamedTuple):
    """Everything below this place has been acknowledged, at this boot time in milliseconds."""

    at_ms: int
    place: Place


class Again(NamedTuple):
    """These runs of days that have gone have been acknowledged: (partition, time, job, attempt)."""

    at_ms: int
    fences: Sequence[tuple[int, int, int, int]]


class OpenBelowFloorError(Exception):
    """A mistake of ours: a run is open where nothing can be. Nothing there is recorded, and so nothing is dropped."""


class RecordHistory:
    """Writes the finished runs of one shard to the history."""

    def __init__(
        self,
        shard: Shard,
        all_partitions: Sequence[int],
        sink: Sink,
        worker_id: int,
        live_days: int,
        turn: asyncio.Semaphore,
        clock: Clock,
        events: Events,
        durable_after_ms: int,
    ) -> None:
        """``turn`` bounds how many shards are worked on at the same time, and with that the memory.

        What is acknowledged outlives its node so many milliseconds later, unless the sink has lost one by then.
        """
        self._shard = shard
        self._all_partitions = all_partitions
        self._sink = sink
        self._worker_id = worker_id
        self._live_days = live_days
        self._turn = turn
        self._clock = clock
        self._events = events
        self._durable_after_ms = durable_after_ms
        self._written: deque[Written] = deque()
        self._again: deque[Again] = deque()
        self._losses = sink.losses

    async def run_once(self, now_ms: int) -> bool:
        """Record one partition up to the floor; True if there may be another. While Cassandra is away nothing happens:
        that is told, and is no failure of this stage."""
        now_ms = await self._shard.now_ms()
        await self._tell_backlog(now_ms)
        await self._confirm()
        places = await self._recordable(now_ms)
        try:
            async with self._turn:
                await self._record_again()
                if places:
                    await self._record(places[0], now_ms)
        except HistoryUnavailable as error:
            self._events.emit("history.unavailable", error=str(error), shard=self._shard.index)
            return False
        return len(places) > 1

    @property
    def unconfirmed(self) -> int:
        """Pieces that are acknowledged and not noted yet."""
        return len(self._written) + len(self._again)

    async def _recordable(self, now_ms: int) -> list[Place]:
        """Partitions that are not at the floor; without those whose last piece has been written."""
        values = {"worker_id": self._worker_id, "now_ms": now_ms}
        rows = (await self._shard.execute("recordable", values)).rows
        written = {written.place.partition_id for written in self._written}
        return [place for place in (Place(*map(int, row)) for row in rows) if place.partition_id not in written]

    async def _record(self, place: Place, now_ms: int) -> None:
        """From here to the end of what is closed, reading the next piece while one is written; ends early if another
        has taken over, or there is reason to go back."""
        if not await self._take(place, now_ms):
            return
        piece: Piece | None = await self._read(place)
        while piece is not None:
            piece, more = await _both(self._write(piece), self._next(piece))
            self._written.append(Written(self._clock.boot_ms(), piece.after))
            if not await self._confirm():
                return
            piece = more

    async def _confirm(self) -> bool:
        """Note what is on the nodes' disks by now. False if there is nothing to go on from: a node was lost, and all of
        it is written again, or another recorder has taken over."""
        if self._sink.losses != self._losses:
            self._losses = self._sink.losses
            self._events.emit("record.repeated", pieces=len(self._written), shard=self._shard.index)
            self._written.clear()
            self._again.clear()
            return False
        durable_ms = self._clock.boot_ms() - self._durable_after_ms
        latest: dict[int, Place] = {}
        while self._written and self._written[0].at_ms <= durable_ms:
            place = self._written.popleft().place
            latest[place.partition_id] = place
        while self._again and self._again[0].at_ms <= durable_ms:
            await self._note_again(self._again.popleft().fences)
        moved = [await self._move(place) for place in latest.values()]
        return all(moved)

    async def _take(self, place: Place, now_ms: int) -> bool:
        lease = {**self._mine(place), "lease_until": now_ms + self._lease_ms}
        await self._shard.execute("make_recorded", lease)
        values = {**lease, "recorded_at": place.at_ms, "job_id": place.job_id, "now_ms": now_ms}
        return (await self._shard.execute("take_recorded", values)).found == 1

    @property
    def _lease_ms(self) -> int:
        return LEASE_MS + self._durable_after_ms

    async def _next(self, piece: Piece) -> Piece | None:
        """What comes behind a piece; None behind the last one."""
        return None if piece.after.at_ms >= piece.after.until_ms else await self._read(piece.after)

    async def _read(self, place: Place) -> Piece:
        values: dict[str, Value] = {
            "partition_id": place.partition_id,
            "recorded_at": place.at_ms,
            "job_id": place.job_id,
            "until_at": place.until_ms,
            "gone_to": place.gone_ms,
            "rows_max": RUNS_MAX,
        }
        runs = (await self._shard.execute("finished_runs", values)).rows
        if not runs:
            return Piece([], place._replace(at_ms=place.until_ms, job_id=0))
        values |= {"last_at": runs[-1][0]}
        attempts = (await self._shard.execute("attempts_between", values | {"rows_max": ATTEMPTS_MAX})).rows
        reports = (await self._shard.execute("reports_between", values | {"rows_max": REPORTS_MAX})).rows
        whole, full = len(runs) < RUNS_MAX, []
        full += [_key(attempts[-1])] if len(attempts) == ATTEMPTS_MAX else []
        full += [_key(reports[-1])] if len(reports) == REPORTS_MAX else []
        if full:
            # The last one's run may have more of them: it begins the next piece, or is one by itself, cut short.
            runs, whole = [run for run in runs if _key(run) < min(full)] or runs[:1], False
        after = (place.until_ms, 0) if whole else _key(runs[-1])
        return Piece(_finished(runs, attempts, reports), place._replace(at_ms=after[0], job_id=after[1]))

    async def _write(self, piece: Piece) -> Piece:
        if piece.runs:
            await self._sink.write(piece.runs)
            self._events.emit("run.recorded", runs=len(piece.runs), shard=self._shard.index)
        return piece

    async def _move(self, place: Place) -> bool:
        """False if another recorder has the partition by now: it goes on from where it found us."""
        values = {**self._mine(place), "recorded_at": place.at_ms, "job_id": place.job_id}
        ended = (place.at_ms, place.job_id) == (place.until_ms, 0)
        values["lease_until"] = 0 if ended else await self._shard.now_ms() + self._lease_ms
        if (await self._shard.execute("move_recorded", values)).found == 1:
            return True
        self._written = deque(each for each in self._written if each.place.partition_id != place.partition_id)
        return False

    def _mine(self, place: Place) -> dict[str, int]:
        return {"partition_id": place.partition_id, "worker_id": self._worker_id}

    async def _record_again(self) -> None:
        """What was retried of days that have gone, and has ended since. Several recorders write the same rows; the
        keeper removes them."""
        gone_ms = int((await self._shard.execute("gone_days")).rows[0][0])
        values: dict[str, Value] = {"partitions": self._all_partitions, "gone_to": gone_ms, "rows_max": RETRIED_MAX}
        written = {fence for again in self._again for fence in again.fences}
        rows = (await self._shard.execute("retried_runs", values)).rows
        rows = [row for row in rows if _fence(row) not in written]
        if not rows:
            return
        keys = sorted(RunKey(*row[:3]) for row in rows)
        async with self._shard.connection() as connection:
            bounds, bytes_max = time_bounds(keys), self._shard.packet_bytes_max
            attempts = await connection.fetch_rows("attempts_of_runs", keys, bounds, bytes_max=bytes_max)
            reports = await connection.fetch_rows("reports_of_runs", keys, bounds, bytes_max=bytes_max)
        runs = _finished(*([row[1:] for row in table] for table in (rows, sorted(attempts), reports)))
        await self._sink.write_again(runs)
        self._events.emit("run.recorded", runs=len(runs), shard=self._shard.index)
        self._again.append(Again(self._clock.boot_ms(), sorted(map(_fence, rows))))
        await self._confirm()

    async def _note_again(self, fences: Sequence[tuple[int, int, int, int]]) -> None:
        async with self._shard.connection() as connection:
            await connection.execute_rows(
                "note_recorded_again", fences, time_bounds(fences), bytes_max=self._shard.packet_bytes_max
            )

    async def _tell_backlog(self, now_ms: int) -> None:
        """Days that are old enough to leave MySQL and are still there: how old, and about how many runs."""
        due_ms = now_ms - self._live_days * DAY_MS
        days = (await self._shard.execute("days_waiting", {"until_at": due_ms})).rows
        age_ms = due_ms - int(days[0][0]) if days else 0
        runs = sum(int(rows) for _, rows in days)
        self._events.emit("record.backlog", shard=self._shard.index, age_ms=age_ms, runs=runs)


async def _both(
    writing: Coroutine[Any, Any, Piece], reading: Coroutine[Any, Any, Piece | None]
) -> tuple[Piece, Piece | None]:
    """Both at once; what fails first ends the other."""
    loop = asyncio.get_running_loop()
    tasks = loop.create_task(writing), loop.create_task(reading)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _finished(runs: Iterable[Row], attempts: Iterable[Row], reports: Iterable[Row]) -> list[FinishedRun]:
    """Rows of ``finished_runs`` with what belongs to them; withdrawn runs never were."""
    told = {_key(row): Report(*row[2:]) for row in reports}
    failed = {key: [AttemptRow(*row[2:]) for row in rows] for key, rows in itertools.groupby(attempts, _key)}
    finished = []
    for *run, tenant_id, priority in runs:
        row = RunRow(*run)
        if row.state in OPEN_STATES:
            raise OpenBelowFloorError(f"run {row.job_id} of {row.scheduled_at_ms} is open below the floor")
        if row.state != RunState.WITHDRAWN:
            key = _key(row)
            finished.append(FinishedRun(tenant_id, priority, row, failed.get(key, ()), told.get(key)))
    return finished


def _fence(row: Row) -> tuple[int, int, int, int]:
    """Of a row of ``retried_runs``."""
    return (*row[:3], row[6])


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    """Time and job."""
    return tuple(row[:2])
