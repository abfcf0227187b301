"""Record, with history in Cassandra: the runs of a day that is closed are written there, then the day is dropped.

Nothing is open in a closed day, nor will be, so no row of it ever changes: it is walked once, partition by partition in
the order of the primary key, and how far that came is kept in MySQL after each piece. A recorder that is killed writes
its last piece again, the same rows under the same keys. Two pieces are in memory at most, one being read while the
other is written, and each is bounded; what waits, waits in MySQL.

A dead letter that is retried after its day has gone stands in MySQL again, and is looked for by itself: once it has
ended it is written over what the history has of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from engine.errors import HistoryUnavailable
from engine.events import Events
from engine.model import RunKey, RunState
from engine.rows import AttemptRow, FinishedRun, Report, RunRow
from engine.stages.days import DAY_MS
from engine.store.connection import Row
from engine.store.shard import Shard
from engine.store.statements import Value

# A piece: as many runs as a statement of ours has rows, and no more than 8 MB of attempts and 16 MB of reports.
RUNS_MAX = 2_000
ATTEMPTS_MAX = 5_000
REPORTS_MAX = 250
# Runs of days that have gone, in one turn: each is read from the history first.
RETRIED_MAX = 200

# A recorder that is silent for this long has lost its partition. A piece takes a second, 20 where Cassandra is slow.
LEASE_MS = 60_000

OPEN = frozenset({RunState.PENDING, RunState.RUNNING, RunState.WAITING})


class Sink(Protocol):
    """Where finished runs go."""

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
        events: Events,
    ) -> None:
        """``turn`` bounds how many shards are worked on at the same time, and with that the memory."""
        self._shard = shard
        self._all_partitions = all_partitions
        self._sink = sink
        self._worker_id = worker_id
        self._live_days = live_days
        self._turn = turn
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        """Record one partition up to the floor; True if there may be another. While Cassandra is away nothing happens:
        that is told, and is no failure of this stage."""
        now_ms = await self._shard.now_ms()
        values = {"worker_id": self._worker_id, "now_ms": now_ms}
        places = [Place(*map(int, row)) for row in (await self._shard.execute("recordable", values)).rows]
        await self._tell_backlog(now_ms)
        try:
            async with self._turn:
                await self._record_again()
                if places:
                    await self._record(places[0], now_ms)
        except HistoryUnavailable as error:
            self._events.emit("history.unavailable", error=str(error), shard=self._shard.index)
            return False
        return len(places) > 1

    async def _record(self, place: Place, now_ms: int) -> None:
        """From here to the end of what is closed, reading the next piece while one is written; ends early if another
        has taken over."""
        if not await self._take(place, now_ms):
            return
        piece: Piece | None = await self._read(place)
        while piece is not None:
            piece, more = await _both(self._write(piece), self._next(piece))
            if not await self._move(piece.after):
                return
            piece = more
        await self._shard.execute("let_go_recorded", self._mine(place))

    async def _take(self, place: Place, now_ms: int) -> bool:
        lease = {**self._mine(place), "lease_until": now_ms + LEASE_MS}
        await self._shard.execute("make_recorded", lease)
        values = {**lease, "recorded_at": place.at_ms, "job_id": place.job_id, "now_ms": now_ms}
        return (await self._shard.execute("take_recorded", values)).found == 1

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
        values["lease_until"] = await self._shard.now_ms() + LEASE_MS
        return (await self._shard.execute("move_recorded", values)).found == 1

    def _mine(self, place: Place) -> dict[str, int]:
        return {"partition_id": place.partition_id, "worker_id": self._worker_id}

    async def _record_again(self) -> None:
        """What was retried of days that have gone, and has ended since. Several recorders write the same rows; the
        keeper removes them."""
        gone_ms = int((await self._shard.execute("gone_days")).rows[0][0])
        values: dict[str, Value] = {"partitions": self._all_partitions, "gone_to": gone_ms, "rows_max": RETRIED_MAX}
        rows = (await self._shard.execute("retried_runs", values)).rows
        if not rows:
            return
        keys = sorted(RunKey(*row[:3]) for row in rows)
        bounds = {"from_at": min(key[1] for key in keys), "to_at": max(key[1] for key in keys)}
        async with self._shard.connection() as connection:
            bytes_max = self._shard.packet_bytes_max
            attempts = await connection.fetch_rows("attempts_of_runs", keys, bounds, bytes_max=bytes_max)
            reports = await connection.fetch_rows("reports_of_runs", keys, bounds, bytes_max=bytes_max)
        runs = _finished(*([row[1:] for row in table] for table in (rows, sorted(attempts), reports)))
        await self._sink.write_again(runs)
        self._events.emit("run.recorded", runs=len(runs), shard=self._shard.index)
        fences = sorted((*row[:3], row[6]) for row in rows)
        async with self._shard.connection() as connection:
            await connection.execute_rows("note_recorded_again", fences, bounds, bytes_max=self._shard.packet_bytes_max)

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
        if row.state in OPEN:
            raise OpenBelowFloorError(f"run {row.job_id} of {row.scheduled_at_ms} is open below the floor")
        if row.state != RunState.WITHDRAWN:
            key = _key(row)
            finished.append(FinishedRun(tenant_id, priority, row, failed.get(key, ()), told.get(key)))
    return finished


def _key(row: Sequence[Any]) -> tuple[Any, ...]:
    """Time and job."""
    return tuple(row[:2])
