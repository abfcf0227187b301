"""Claim: waiting runs that are due (or nearly) are taken through their row in ``deferred``.

The owner of a partition claims a little ahead; anyone may claim what is late, so that a dead owner delays its runs by
a moment and not by a lease. Runs that must not overlap are claimed under their job's row lock, never ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.errors import CommitUnknown, Conflict
from engine.events import Events
from engine.model import (
    OPEN_STATES,
    Definition,
    JobState,
    NoticeKind,
    Overlap,
    Priority,
    Reason,
    RunKey,
    RunState,
    Trigger,
)
from engine.rules.changes import HELD_UNTIL_MS
from engine.rules.claiming import chosen
from engine.rules.notices import About, notice_row
from engine.rules.ready import LATE_MS as LATE_CLASS_MS
from engine.stages.held import PREPARE_MS, HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.versions import CallPlan, Versions
from engine.store.connection import Connection, Duplicate, Row
from engine.store.shard import Shard
from engine.store.statements import Value

CANDIDATES_MAX = 1_000

# What its owner has not claimed this long after it was due is anybody's: it claims ahead, so it is gone or behind. The
# sum of this, a look at dead processes, a reap and a poll (250 ms each) is what a dead owner delays its runs by.
LATE_MS = 500

# A run that waits for an open run of its job is looked at again after this long, should nobody have woken it.
OVERLAP_WAIT_MS = 60_000


class Waiting(NamedTuple):
    """A row of ``lock_deferred_runs``."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int
    tenant_id: int
    version: int
    state: int
    priority: int
    trigger: int
    attempt: int
    tries: int
    cancel_requested: int
    due_at_ms: int
    reason: int
    job_state: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)

    @property
    def job_key(self) -> tuple[int, int]:
        return self.partition_id, self.job_id


class Take(NamedTuple):
    """What one transaction does with the runs it has locked."""

    claimed: list[HeldRun]
    overlapping: list[HeldRun]
    new_active: list[Row]
    waits: list[Waiting]
    paused: list[Waiting]
    deleted: list[Waiting]
    skipped: list[Waiting]
    invalid: list[Waiting]
    cancelled: list[Waiting]
    closed: list[Waiting]
    notices: list[About]

    @property
    def dealt_with(self) -> int:
        """How many runs it does something with."""
        return sum(len(part) for part in self) - len(self.new_active) - len(self.notices)


def _nothing() -> Take:
    return Take(*([] for _ in Take._fields))


class Claim:
    """Claims on one shard for one worker."""

    def __init__(
        self,
        shard: Shard,
        lease: Lease,
        all_partitions: Sequence[int],
        held: HeldRuns,
        hold: Callable[[Sequence[HeldRun]], None],
        versions: Versions,
        clock: Clock,
        events: Events,
        is_told: Callable[[int, Definition], bool],
    ) -> None:
        self._shard = shard
        self._lease = lease
        self._all_partitions = all_partitions
        self._held = held
        self._hold_runs = hold
        self._versions = versions
        self._clock = clock
        self._events = events
        self._is_told = is_told
        self._unknown: list[HeldRun] = []

    async def run_once(self, now_ms: int) -> bool:
        """One batch of what is due on my partitions, else of what is late on any; True if there may be more."""
        await self._resolve_unknown()
        room = min(CANDIDATES_MAX, self._held.room())
        if room == 0 or not self._lease.trusted():
            return False
        ahead_ms = PREPARE_MS if self._lease.may_claim_ahead() else 0
        mine, anybodys = (self._lease.partitions, now_ms + ahead_ms), (self._all_partitions, now_ms - LATE_MS)
        for partitions, due_at_ms in (mine, anybodys):
            candidates = await self._candidates(partitions, now_ms, due_at_ms, room)
            if candidates and await self._claim(candidates, now_ms, due_at_ms):
                return len(candidates) == room
        return False

    async def _candidates(
        self, partitions: Sequence[int], now_ms: int, due_at_ms: int, rows_max: int
    ) -> list[RunKey]:
        """In one round trip the first of each class; what is a minute late is a class of its own, as in firing."""
        if not partitions:
            return []
        late_ms = min(due_at_ms, now_ms - LATE_CLASS_MS)
        common: dict[str, Value] = {"partitions": partitions, "rows_max": rows_max}
        asked = [
            ("due_deferred", {**common, "priority": priority, "due_after": after_ms, "due_at": until_ms})
            for after_ms, until_ms in ((late_ms, due_at_ms), (-1, late_ms))
            for priority in Priority
        ]
        rows = [answer.rows for answer in await self._shard.ask(*asked)]
        on_time: dict[int, Sequence[Row]] = dict(zip(Priority, rows[: len(Priority)], strict=True))
        late: dict[int, Sequence[Row]] = dict(zip(Priority, rows[len(Priority) :], strict=True))
        return sorted(RunKey(*row) for row in chosen(on_time, late, rows_max))

    async def _claim(self, candidates: Sequence[RunKey], now_ms: int, due_at_ms: int) -> int:
        """Returns how many runs were claimed or otherwise dealt with."""
        take = _nothing()

        async def transaction() -> None:
            nonlocal take
            async with self._shard.transaction() as connection:
                take = await self._sort_out(connection, candidates, now_ms, due_at_ms)
                await self._write(connection, take, now_ms)

        try:
            await self._shard.retrying(transaction)
        except CommitUnknown:
            self._unknown = take.claimed + take.overlapping
            raise
        self._hold(take.claimed + take.overlapping)
        return take.dealt_with

    async def _sort_out(
        self, connection: Connection, candidates: Sequence[RunKey], now_ms: int, due_at_ms: int
    ) -> Take:
        partitions = sorted({key.partition_id for key in candidates})
        placed = {row[0] for row in (await connection.execute("share_placement", {"partitions": partitions})).rows}
        keys = [key for key in candidates if key.partition_id in placed]
        take = _nothing()
        if not keys:
            return take
        rows = await self._lock(connection, keys, due_at_ms)
        calls = await self._versions.load(
            connection, [(run.partition_id, run.job_id, run.version) for run in rows], self._shard.packet_bytes_max
        )
        overlapping: list[tuple[Waiting, CallPlan]] = []
        for run in rows:
            call = calls[run.partition_id, run.job_id, run.version]
            if run.state not in OPEN_STATES:
                take.closed.append(run)
            elif run.state != RunState.WAITING:
                continue  # somebody holds it; the reaper sees to it when its holder is gone
            elif run.cancel_requested:
                take.cancelled.append(run)
            elif run.job_state == JobState.DELETED:
                take.deleted.append(run)
            elif run.job_state == JobState.PAUSED and run.trigger != Trigger.MANUAL:
                take.paused.append(run)
            elif isinstance(call, Exception):
                self._events.emit("job.invalid", job_id=run.job_id, error=call)
                take.invalid.append(run)
            elif call.definition.overlap != Overlap.ALLOW:
                overlapping.append((run, call))
            else:
                take.claimed.append(self._held_run(run, call, now_ms, overlap=False))
        if overlapping:
            await self._sort_overlapping(connection, take, overlapping, now_ms)
        return take

    async def _lock(self, connection: Connection, keys: Sequence[RunKey], due_at_ms: int) -> list[Waiting]:
        rows = await connection.fetch_rows(
            "lock_deferred_runs", keys, {**_bounds(keys), "due_at": due_at_ms}, bytes_max=self._shard.packet_bytes_max
        )
        return [Waiting(*row) for row in rows]

    async def _sort_overlapping(
        self, connection: Connection, take: Take, runs: Sequence[tuple[Waiting, CallPlan]], now_ms: int
    ) -> None:
        """One run of a job at a time: the first due takes the job, the others are skipped or wait."""
        due = [(run, call) for run, call in runs if run.due_at_ms <= now_ms]
        job_keys = sorted({run.job_key for run, _ in due})
        if not job_keys:
            return
        bytes_max = self._shard.packet_bytes_max
        active_rows = await connection.fetch_rows("read_active", job_keys, bytes_max=bytes_max)
        active = {(row[0], row[1]): row[2] for row in active_rows}
        waiters: dict[tuple[int, int], set[int]] = defaultdict(set)
        for partition_id, job_id, scheduled_at in await connection.fetch_rows(
            "other_overlap_waiters", job_keys, bytes_max=bytes_max
        ):
            waiters[partition_id, job_id].add(scheduled_at)
        for run, call in sorted(due, key=lambda pair: pair[0].key):
            holder = active.get(run.job_key)
            if holder is None or holder == run.scheduled_at_ms:
                active[run.job_key] = run.scheduled_at_ms
                if holder is None:
                    take.new_active.append((*run.job_key, run.scheduled_at_ms))
                take.overlapping.append(self._held_run(run, call, now_ms, overlap=True))
            elif call.definition.overlap == Overlap.WAIT and not waiters[run.job_key] - {run.scheduled_at_ms}:
                waiters[run.job_key].add(run.scheduled_at_ms)
                take.waits.append(run)
            else:
                take.skipped.append(run)
                if self._is_told(run.tenant_id, call.definition):
                    take.notices.append(_about(run))

    def _held_run(self, run: Waiting, call: CallPlan, now_ms: int, *, overlap: bool) -> HeldRun:
        due_ms = max(run.due_at_ms, run.scheduled_at_ms)
        return HeldRun(
            run.key,
            worker_id=self._lease.worker_id,
            attempt=run.attempt + 1,
            tries=run.tries,
            tenant_id=run.tenant_id,
            version=run.version,
            priority=run.priority,
            due_ms=due_ms,
            lease_until_ms=call.lease_until_ms(due_ms, now_ms),
            deferred=True,
            overlap=overlap,
            call=call,
            shard_index=self._shard.index,
            # Due now, but of a time long ago: a tenant's catch-up must not take the starts of what is on time.
            late=run.trigger == Trigger.CATCH_UP and run.tries == 0,
        )

    async def _write(self, connection: Connection, take: Take, now_ms: int) -> None:
        bytes_max = self._shard.packet_bytes_max
        claimed = sorted(take.claimed + take.overlapping, key=lambda run: run.key)
        if claimed:
            rows = [(*run.key, run.attempt, run.lease_until_ms) for run in claimed]
            values = {**_bounds([run.key for run in claimed]), "worker_id": self._lease.worker_id}
            found = await connection.execute_rows("claim_runs", rows, values, bytes_max=bytes_max)
            if found != len(claimed):
                raise Conflict(f"claimed {found} of {len(claimed)} runs")
        await self._end(connection, take.skipped, RunState.SKIPPED, Reason.OVERLAP, now_ms)
        await self._end(connection, take.deleted, RunState.SKIPPED, Reason.DELETED, now_ms)
        await self._end(connection, take.invalid, RunState.SKIPPED, Reason.INVALID, now_ms)
        await self._end(connection, take.cancelled, RunState.CANCELLED, None, now_ms)
        due_rows = [(*run.key, run.lease_until_ms, Reason.SCHEDULED) for run in claimed]
        due_rows += [(*run.key, now_ms + OVERLAP_WAIT_MS, Reason.OVERLAP) for run in take.waits]
        due_rows += [(*run.key, HELD_UNTIL_MS, Reason.HELD) for run in take.paused]
        if due_rows:
            await connection.execute_rows("set_deferred_due", sorted(due_rows), bytes_max=bytes_max)
        gone = sorted(run.key for run in (*take.skipped, *take.deleted, *take.invalid, *take.cancelled, *take.closed))
        if gone:
            await connection.execute_rows("delete_deferred", gone, bytes_max=bytes_max)
        if take.new_active:
            await self._enter_active(connection, sorted(take.new_active))
        abouts = take.notices + [_about(run) for run in take.invalid]
        if abouts:
            notices = sorted(notice_row(about, now_ms) for about in abouts)
            await connection.execute_rows("insert_notices", notices, bytes_max=bytes_max)

    async def _enter_active(self, connection: Connection, rows: Sequence[Row]) -> None:
        """The key of ``active`` lets one run of a job through, whoever else claims at the same time."""
        try:
            await connection.execute_rows("insert_active", rows, bytes_max=self._shard.packet_bytes_max)
        except Duplicate as error:
            raise Conflict("another run of a job became active first") from error

    async def _end(
        self, connection: Connection, runs: Sequence[Waiting], state: RunState, reason: Reason | None, now_ms: int
    ) -> None:
        """Waiting runs that end without a call."""
        if not runs:
            return
        rows = sorted((*run.key, run.attempt, state, reason, now_ms) for run in runs)
        keys = [run.key for run in runs]
        await connection.execute_rows("end_waiting_runs", rows, _bounds(keys), bytes_max=self._shard.packet_bytes_max)

    def _hold(self, runs: Sequence[HeldRun]) -> None:
        if runs:
            self._hold_runs(runs)
            self._events.emit("run.claimed", runs=len(runs), shard=self._shard.index)

    async def _resolve_unknown(self) -> None:
        """After a lost COMMIT: hold those runs that stand under our name, before anything else is claimed here."""
        if not self._unknown:
            return
        rows: list[Row] = [(*run.key, run.attempt) for run in self._unknown]
        values = {**_bounds([run.key for run in self._unknown]), "worker_id": self._unknown[0].worker_id}
        async with self._shard.connection() as connection:
            found = await connection.fetch_rows(
                "my_planned_runs", rows, values, bytes_max=self._shard.packet_bytes_max
            )
        mine = {(RunKey(*row[:3]), row[3]) for row in found}
        unknown, self._unknown = self._unknown, []
        self._hold([run for run in unknown if run.identity in mine])
        self._events.emit("commit.resolved", step="claim", stood=len(mine), asked=len(unknown))


def _about(run: Waiting) -> About:
    return About(NoticeKind.SKIPPED, run.key, run.tenant_id, run.version)


def _bounds(keys: Sequence[RunKey]) -> dict[str, int]:
    times = [key.scheduled_at_ms for key in keys]
    return {"from_at": min(times), "to_at": max(times)}
