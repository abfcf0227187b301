"""Reap: what a dead or silent worker held goes back (deferred, due now), or fails when its tries are used up.

A worker is dead once its row is released, or its lease is over by the shard's clock. It is condemned first, by
compare-and-set against its own heartbeat, so that it cannot come back while its runs are being given to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.config import Settings
from engine.errors import StoreUnavailable
from engine.events import Events
from engine.model import NoticeKind, OutcomeKind, Overlap, Reason, RunKey, RunState
from engine.rules.lanes import taken_lane
from engine.rules.notices import About, notice_row
from engine.stages.versions import CallPlan, Versions
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import Value, time_bounds

RUNS_PER_BATCH = 1_000
ORPHANS_INTERVAL_MS = 5_000

# A run whose lease has been over for so long is not held by anybody: writing an outcome waits a few seconds in a peak.
LOST_MS = 60_000

# Runs are claimed at most this far ahead; nothing a worker held lies beyond it.
CLAIMED_AHEAD_MS_MAX = 600_000


class DeadRun(NamedTuple):
    """A row of ``lock_dead_runs``."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int
    tenant_id: int
    version: int
    attempt: int
    tries: int
    cancel_requested: int
    lease_until_ms: int
    priority: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)


class Fate(NamedTuple):
    """What becomes of a dead worker's run."""

    run: DeadRun
    state: RunState
    tries: int
    may_have_fired: bool
    overlap: bool
    due_at_ms: int


class Reap:
    """Reaps on one shard. Several reapers at once are harmless: every write is fenced."""

    def __init__(
        self,
        shard: Shard,
        all_partitions: Sequence[int],
        versions: Versions,
        settings: Settings,
        clock: Clock,
        events: Events,
    ) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._lanes = [taken_lane(partition_id) for partition_id in all_partitions]
        self._versions = versions
        self._settings = settings
        self._clock = clock
        self._events = events
        self._answering_since_boot_ms: int | None = None
        self._answered_boot_ms = 0
        self._orphans_at_ms = 0

    async def run_once(self, now_ms: int) -> bool:
        """Reap one batch of one dead worker; True if there may be more."""
        try:
            return await self._run_once(now_ms)
        except StoreUnavailable:
            # Also where it answers but cannot be written: no worker could renew there.
            self._answering_since_boot_ms = None
            raise

    async def _run_once(self, now_ms: int) -> bool:
        rows = (await self._shard.execute("expired_workers")).rows
        self._note_answer()
        for worker_id, lease_until in rows:
            if lease_until > 0 and not await self._condemn(worker_id):
                continue
            return await self._reap_worker(worker_id, now_ms)
        return await self._reap_orphans(now_ms)

    def _note_answer(self) -> None:
        """A gap is also a silence of our own: where a whole machine was paused, every lease on it is expired."""
        boot_ms = self._clock.boot_ms()
        gap_ms_max = self._settings.lease_ms - 2 * self._settings.heartbeat_ms
        if self._answering_since_boot_ms is None or boot_ms - self._answered_boot_ms > gap_ms_max:
            self._answering_since_boot_ms = boot_ms
        self._answered_boot_ms = boot_ms

    def _answering(self) -> bool:
        since = self._answering_since_boot_ms
        return since is not None and self._clock.boot_ms() - since >= self._settings.lease_ms

    async def _condemn(self, worker_id: int) -> bool:
        """After an outage all leases are expired: one counts once this shard has answered for a whole lease."""
        if not self._answering():
            return False
        answer = await self._shard.execute("condemn_worker", {"worker_id": worker_id})
        if answer.found:
            self._events.emit("worker.condemned", worker_id=worker_id, shard=self._shard.index)
        return answer.found == 1

    async def _reap_worker(self, worker_id: int, now_ms: int) -> bool:
        keys = await self._held_by(worker_id, now_ms)
        if not keys:
            await self._shard.execute("delete_signals_of_worker", {"worker_id": worker_id})
            await self._shard.execute("delete_worker", {"worker_id": worker_id})
            self._events.emit("worker.reaped", worker_id=worker_id, shard=self._shard.index)
            return True
        return await self._reap(worker_id, keys, now_ms)

    async def _reap_orphans(self, now_ms: int) -> bool:
        """Runs whose worker is no longer known: it claimed them in a transaction that ended after it was reaped. And
        runs that a live one has lost: it cannot fire them any more, and has had long enough to write how they ended.

        The mark's mover puts every open run into ``deferred``, due when its lease ends; there they are found.
        """
        if now_ms < self._orphans_at_ms or not self._answering():
            return False
        self._orphans_at_ms = now_ms + ORPHANS_INTERVAL_MS
        shard_ms = await self._shard.now_ms()
        values: dict[str, Value] = {
            "lanes": self._lanes,
            "now_ms": shard_ms,
            "lost_before": shard_ms - LOST_MS,
            "rows_max": RUNS_PER_BATCH,
        }
        rows = (await self._shard.execute("orphaned_runs", values)).rows
        for worker_id in {row[0] for row in rows}:
            await self._reap(worker_id, sorted(RunKey(*row[1:]) for row in rows if row[0] == worker_id), now_ms)
        return len(rows) == RUNS_PER_BATCH

    async def _reap(self, worker_id: int, keys: Sequence[RunKey], now_ms: int) -> bool:
        async def transaction() -> Sequence[Fate]:
            async with self._shard.transaction() as connection:
                return await self._give_back(connection, worker_id, keys, now_ms)

        fates = await self._shard.retrying(transaction)
        self._events.emit("run.reaped", runs=len(fates), shard=self._shard.index)
        return bool(fates)

    async def _held_by(self, worker_id: int, now_ms: int) -> list[RunKey]:
        mark_at = (await self._shard.execute("lowest_mark", {"partitions": self._all_partitions})).rows[0][0]
        values: dict[str, Value] = {
            "partitions": self._all_partitions,
            "lanes": self._lanes,
            "worker_id": worker_id,
            "rows_max": RUNS_PER_BATCH,
        }
        bounds = {"from_at": mark_at or 0, "to_at": now_ms + CLAIMED_AHEAD_MS_MAX}
        rows = (await self._shard.execute("held_by_worker", {**values, **bounds})).rows
        if not rows:
            rows = (await self._shard.execute("deferred_held_by_worker", values)).rows
        return sorted(RunKey(*row) for row in rows)

    async def _give_back(
        self, connection: Connection, worker_id: int, keys: Sequence[RunKey], now_ms: int
    ) -> Sequence[Fate]:
        fence = {**time_bounds(keys), "worker_id": worker_id}
        bytes_max = self._shard.packet_bytes_max
        rows = await connection.fetch_rows("lock_dead_runs", keys, fence, bytes_max=bytes_max)
        runs = sorted((DeadRun(*row) for row in rows), key=lambda run: run.key)
        calls = await self._versions.load(
            connection, [(run.partition_id, run.job_id, run.version) for run in runs], bytes_max
        )
        fates = [_fate(run, calls[run.partition_id, run.job_id, run.version], now_ms) for run in runs]
        if fates:
            await self._write(connection, fates, fence, now_ms)
        return fates

    async def _write(
        self, connection: Connection, fates: Sequence[Fate], fence: dict[str, int], now_ms: int
    ) -> None:
        bytes_max = self._shard.packet_bytes_max
        rows = [_run_row(fate, now_ms) for fate in fates]
        await connection.execute_rows("settle_runs", rows, fence, bytes_max=bytes_max)
        fired = [_attempt_row(fate, fence["worker_id"], now_ms) for fate in fates if fate.may_have_fired]
        if fired:
            await connection.execute_rows("insert_attempts", fired, bytes_max=bytes_max)
        waiting = [
            (*fate.run.key, fate.due_at_ms, Reason.REAPED, fate.run.priority, fate.run.tenant_id)
            for fate in fates
            if fate.state == RunState.WAITING
        ]
        if waiting:
            await connection.execute_rows("insert_deferred", waiting, bytes_max=bytes_max)
        ended = [fate for fate in fates if fate.state != RunState.WAITING]
        if ended:
            await self._end(connection, ended, fence, now_ms)

    async def _end(
        self, connection: Connection, ended: Sequence[Fate], fence: dict[str, int], now_ms: int
    ) -> None:
        bytes_max = self._shard.packet_bytes_max
        await connection.execute_rows("delete_deferred", [fate.run.key for fate in ended], bytes_max=bytes_max)
        overlap = [fate.run.key for fate in ended if fate.overlap]
        if overlap:
            await connection.execute_rows("delete_active", overlap, bytes_max=bytes_max)
            jobs = sorted({(key.partition_id, key.job_id) for key in overlap})
            await connection.execute_rows("wake_overlap_waiters", jobs, {"now_ms": now_ms}, bytes_max=bytes_max)
        dead = [fate.run for fate in ended if fate.state == RunState.FAILED]
        if dead:
            values = {"from_at": fence["from_at"], "to_at": fence["to_at"], "now_ms": now_ms}
            await connection.execute_rows("insert_dead_letters", [run.key for run in dead], values, bytes_max=bytes_max)
            abouts = [About(NoticeKind.FAILED, run.key, run.tenant_id, run.version) for run in dead]
            rows = sorted(notice_row(about, now_ms) for about in abouts)
            await connection.execute_rows("insert_notices", rows, bytes_max=bytes_max)


def _fate(run: DeadRun, call: CallPlan | Exception, now_ms: int) -> Fate:
    """A run reaped before it was due cannot have fired: no try is counted, and it waits for its own moment."""
    due_ms = call.due_ms(run.lease_until_ms) if isinstance(call, CallPlan) else run.scheduled_at_ms
    may_have_fired = due_ms <= now_ms
    tries = run.tries + (1 if may_have_fired else 0)
    if run.cancel_requested:
        state = RunState.CANCELLED
    elif may_have_fired and isinstance(call, CallPlan) and tries >= call.definition.retry.max_attempts:
        state = RunState.FAILED
    else:
        state = RunState.WAITING
    # Where nobody can tell, it may have been its job's open run.
    overlap = not isinstance(call, CallPlan) or call.definition.overlap != Overlap.ALLOW
    return Fate(run, state, tries, may_have_fired, overlap, max(due_ms, now_ms))


def _run_row(fate: Fate, now_ms: int) -> tuple[object, ...]:
    """A row of ``settle_runs``."""
    ended = fate.state != RunState.WAITING
    reason = Reason.WORKER_LOST if fate.state == RunState.FAILED else Reason.REAPED
    outcome = OutcomeKind.WORKER_LOST if fate.may_have_fired else None
    finished_at = now_ms if ended else None
    run = fate.run
    return (*run.key, run.attempt, fate.state, fate.tries, reason, outcome, None, None, finished_at, 0)


def _attempt_row(fate: Fate, worker_id: int, now_ms: int) -> tuple[object, ...]:
    """A row of ``insert_attempts``."""
    kind = OutcomeKind.WORKER_LOST
    return (*fate.run.key, fate.run.attempt, worker_id, kind, None, None, now_ms, kind.name.lower(), None)
