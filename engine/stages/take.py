"""Taking waiting runs through their rows in ``deferred``: locked, sorted out by what their jobs say, and written.

Executors take what they fire themselves, and offer function runs to the lane of their workers; a door takes from there,
for a worker that asks. Pause, deletion, cancel and overlap are judged here for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from engine.errors import Conflict
from engine.events import Events
from engine.model import (
    OPEN_STATES,
    Definition,
    JobState,
    NoticeKind,
    Overlap,
    Reason,
    RunKey,
    RunState,
    Trigger,
    is_door,
)
from engine.rules.changes import HELD_UNTIL_MS
from engine.rules.lanes import held_lane, offered_lane, sealed_lane, taken_lane
from engine.rules.notices import About, notice_row
from engine.rules.work import LEASE_MS
from engine.stages.held import HeldRun
from engine.stages.versions import CallPlan, Versions
from engine.store.connection import Connection, Duplicate, Part, Row
from engine.store.shard import Shard
from engine.store.statements import time_bounds

# A run that waits for an open run of its job is looked at again after this long, should nobody have woken it.
OVERLAP_WAIT_MS = 60_000
# A run whose secrets cannot be opened is looked at again after this long, by whoever comes first.
SEALED_WAIT_MS = 10_000


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
    name: str | None
    lane: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)

    @property
    def job_key(self) -> tuple[int, int]:
        return self.partition_id, self.job_id


class Take:
    """What one transaction does with the runs it has locked."""

    def __init__(self, worker_id: int = 0, wanted: Set[tuple[int, str]] = frozenset()) -> None:
        self.worker_id = worker_id
        self.wanted = wanted
        self.door = is_door(worker_id)
        self.claimed: list[HeldRun] = []
        self.rows: list[Waiting] = []
        self.offered: list[tuple[Waiting, CallPlan]] = []
        self.new_active: list[Row] = []
        self.waits: list[Waiting] = []
        self.sealed: list[Waiting] = []
        self.paused: list[Waiting] = []
        self.deleted: list[Waiting] = []
        self.skipped: list[Waiting] = []
        self.invalid: list[Waiting] = []
        self.cancelled: list[Waiting] = []
        self.closed: list[Waiting] = []
        self.strays: list[Waiting] = []
        self.disabled: list[Waiting] = []
        self.too_old: list[Waiting] = []
        self.notices: list[About] = []

    @property
    def gone(self) -> list[Waiting]:
        """Those that do not wait any more, without having been claimed."""
        ended = [*self.skipped, *self.deleted, *self.invalid, *self.cancelled, *self.closed]
        return ended + self.disabled + self.too_old

    @property
    def dealt_with(self) -> int:
        """How many runs it does something with."""
        kept = len(self.waits) + len(self.paused) + len(self.sealed) + len(self.strays)
        return len(self.claimed) + len(self.offered) + kept + len(self.gone)


class Taking:
    """Takes on one shard, for an executor or a door."""

    def __init__(
        self, shard: Shard, versions: Versions, events: Events, is_told: Callable[[int, Definition], bool]
    ) -> None:
        self._shard = shard
        self._versions = versions
        self._events = events
        self._is_told = is_told

    async def take(
        self,
        connection: Connection,
        candidates: Sequence[RunKey],
        worker_id: int,
        now_ms: int,
        due_at_ms: int,
        wanted: Set[tuple[int, str]] = frozenset(),
    ) -> Take:
        """One transaction's work: what of the candidates was still due at ``due_at_ms`` and free is dealt with.

        A door takes runs of the ``wanted`` tenants' functions.
        """
        take = Take(worker_id, wanted)
        await self._sort_out(connection, take, candidates, now_ms, due_at_ms)
        await self._write(connection, take, now_ms)
        return take

    async def give_up(
        self,
        connection: Connection,
        candidates: Sequence[RunKey],
        now_ms: int,
        why: Callable[[Waiting, CallPlan | Exception], Reason | None],
    ) -> Take:
        """One transaction's work: of the candidates that are due and free those end for which there is a reason,
        TENANT_DISABLED or MAX_AGE."""
        take = Take()
        take.rows = await self._lock(connection, candidates, now_ms)
        calls = await self._calls(connection, take.rows)
        for run in take.rows:
            call = calls[run.partition_id, run.job_id, run.version]
            reason = why(run, call) if run.state == RunState.WAITING else None
            if reason == Reason.MAX_AGE:
                take.too_old.append(run)
            elif reason == Reason.TENANT_DISABLED:
                take.disabled.append(run)
                if isinstance(call, Exception) or self._is_told(run.tenant_id, call.definition):
                    take.notices.append(_about(run))
        await self._write(connection, take, now_ms)
        return take

    async def _sort_out(
        self, connection: Connection, take: Take, candidates: Sequence[RunKey], now_ms: int, due_at_ms: int
    ) -> None:
        take.rows = await self._lock(connection, candidates, due_at_ms)
        if not take.rows:
            return
        calls = await self._calls(connection, take.rows)
        overlapping: list[tuple[Waiting, CallPlan]] = []
        why = ""
        for run in take.rows:
            call = calls[run.partition_id, run.job_id, run.version]
            if run.state not in OPEN_STATES:
                take.closed.append(run)
            elif run.state != RunState.WAITING:
                take.strays.append(run)  # somebody holds it; the reaper sees to it when its holder is gone
            elif run.cancel_requested:
                take.cancelled.append(run)
            elif run.job_state == JobState.DELETED:
                take.deleted.append(run)
            elif run.job_state == JobState.PAUSED and run.trigger != Trigger.MANUAL:
                take.paused.append(run)
            elif isinstance(call, Exception):
                self._events.emit("job.invalid", job_id=run.job_id, error=call)
                take.invalid.append(run)
            elif call.sealed:
                take.sealed.append(run)
                why = call.sealed
            elif call.definition.overlap != Overlap.ALLOW and not take.door:
                overlapping.append((run, call))
            else:
                self._let_in(take, run, call, now_ms)
        if take.sealed:
            self._events.emit("run.sealed", runs=len(take.sealed), error=why, shard=self._shard.index)
        if overlapping:
            await self._sort_overlapping(connection, take, overlapping, now_ms)

    async def _lock(
        self, connection: Connection, candidates: Sequence[RunKey], due_at_ms: int
    ) -> list[Waiting]:
        """Of the partitions that this shard still holds; a run of another that was locked is left as it is."""
        partitions = sorted({key.partition_id for key in candidates})
        shared, locked = await connection.run_parts(
            Part("share_placement", {"partitions": partitions}),
            Part("lock_deferred_runs", {**time_bounds(candidates), "due_at": due_at_ms}, candidates),
            bytes_max=self._shard.packet_bytes_max,
        )
        placed = {row[0] for row in shared.rows}
        return [run for run in (Waiting(*row) for row in locked.rows) if run.partition_id in placed]

    async def _calls(
        self, connection: Connection, runs: Sequence[Waiting]
    ) -> dict[tuple[int, int, int], CallPlan | Exception]:
        wanted = [(run.partition_id, run.job_id, run.version) for run in runs]
        return await self._versions.load(connection, wanted, self._shard.packet_bytes_max)

    async def _sort_overlapping(
        self,
        connection: Connection,
        take: Take,
        runs: Sequence[tuple[Waiting, CallPlan]],
        now_ms: int,
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
                self._let_in(take, run, call, now_ms)
            elif call.definition.overlap == Overlap.WAIT and not waiters[run.job_key] - {run.scheduled_at_ms}:
                waiters[run.job_key].add(run.scheduled_at_ms)
                take.waits.append(run)
            else:
                take.skipped.append(run)
                if self._is_told(run.tenant_id, call.definition):
                    take.notices.append(_about(run))

    async def _write(self, connection: Connection, take: Take, now_ms: int) -> None:
        bytes_max = self._shard.packet_bytes_max
        if take.claimed:
            await self._write_claimed(connection, take, now_ms)
        lanes = [_offered_row(run, call) for run, call in take.offered]
        lanes += [_sealed_row(run, now_ms) for run in take.sealed]
        if lanes:
            await connection.execute_rows("insert_into_lanes", sorted(lanes), bytes_max=bytes_max)
        await self._end(connection, take.skipped, RunState.SKIPPED, Reason.OVERLAP, now_ms)
        await self._end(connection, take.deleted, RunState.SKIPPED, Reason.DELETED, now_ms)
        await self._end(connection, take.invalid, RunState.SKIPPED, Reason.INVALID, now_ms)
        await self._end(connection, take.cancelled, RunState.CANCELLED, None, now_ms)
        await self._end(connection, take.disabled, RunState.SKIPPED, Reason.TENANT_DISABLED, now_ms)
        await self._end(connection, take.too_old, RunState.FAILED, Reason.MAX_AGE, now_ms)
        await self._bury(connection, take.too_old, now_ms)
        due_rows = [(*run.key, now_ms + OVERLAP_WAIT_MS, Reason.OVERLAP) for run in take.waits]
        due_rows += [(*run.key, HELD_UNTIL_MS, Reason.HELD) for run in take.paused]
        if due_rows:
            await connection.execute_rows("set_deferred_due", sorted(due_rows), bytes_max=bytes_max)
        if take.strays and not take.door:
            part = _taken([(run.key, run.due_at_ms) for run in take.strays])
            await connection.run_parts(part, bytes_max=bytes_max)
        if take.gone:
            await connection.execute_rows("delete_deferred", sorted(run.key for run in take.gone), bytes_max=bytes_max)
            await self._leave_active(connection, take.gone, now_ms)
        if take.new_active:
            await self._enter_active(connection, sorted(take.new_active))
        abouts = take.notices + [_about(run) for run in take.invalid]
        abouts += [_about(run, NoticeKind.FAILED) for run in take.too_old]
        if abouts:
            notices = sorted(notice_row(about, now_ms) for about in abouts)
            await connection.execute_rows("insert_notices", notices, bytes_max=bytes_max)

    async def _write_claimed(self, connection: Connection, take: Take, now_ms: int) -> None:
        """A claimed run is due once its holder has lost it; a worker's run has begun."""
        claimed = sorted(take.claimed, key=lambda run: run.key)
        rows = [(*run.key, run.attempt, run.lease_until_ms) for run in claimed]
        values = {
            **time_bounds(rows),
            "worker_id": take.worker_id,
            "started_at": now_ms if take.door else None,
        }
        held = self._held_in_lane(claimed, now_ms) if take.door else self._held_by_executor(claimed)
        answers = await connection.run_parts(
            Part("claim_runs", values, rows), held, bytes_max=self._shard.packet_bytes_max
        )
        if answers[0].found != len(claimed):
            raise Conflict(f"claimed {answers[0].found} of {len(claimed)} runs")

    def _held_in_lane(self, claimed: Sequence[HeldRun], now_ms: int) -> Part:
        rows = [
            (
                *run.key,
                now_ms + min(LEASE_MS, run.call.timeout_ms),
                Reason.SCHEDULED,
                run.priority,
                held_lane(run.key.partition_id),
                run.tenant_id,
            )
            for run in claimed
        ]
        return Part("insert_into_lanes", rows=rows)

    def _held_by_executor(self, claimed: Sequence[HeldRun]) -> Part:
        return _taken([(run.key, run.lease_until_ms) for run in claimed])

    async def _leave_active(self, connection: Connection, gone: Sequence[Waiting], now_ms: int) -> None:
        """What ends here without a call may have been its job's open run: one given back, or between two tries."""
        bytes_max = self._shard.packet_bytes_max
        keys = sorted(run.key for run in gone)
        if await connection.execute_rows("delete_active", keys, bytes_max=bytes_max):
            jobs = sorted({run.job_key for run in gone})
            await connection.execute_rows("wake_overlap_waiters", jobs, {"now_ms": now_ms}, bytes_max=bytes_max)

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
        bytes_max = self._shard.packet_bytes_max
        await connection.execute_rows("end_waiting_runs", rows, time_bounds(rows), bytes_max=bytes_max)

    async def _bury(self, connection: Connection, runs: Sequence[Waiting], now_ms: int) -> None:
        """Runs that have failed as they waited are dead letters like others."""
        if not runs:
            return
        keys = sorted(run.key for run in runs)
        values = {**time_bounds(keys), "now_ms": now_ms}
        await connection.execute_rows("insert_dead_letters", keys, values, bytes_max=self._shard.packet_bytes_max)

    def _let_in(self, take: Take, run: Waiting, call: CallPlan, now_ms: int) -> None:
        """An executor fires calls; a function's run it only offers."""
        if take.door:
            if call.function is None or (run.tenant_id, call.function.name) not in take.wanted:
                return
        elif call.function is not None:
            take.offered.append((run, call))
            return
        take.claimed.append(self._held_run(run, call, take.worker_id, now_ms))

    def _held_run(self, run: Waiting, call: CallPlan, worker_id: int, now_ms: int) -> HeldRun:
        due_ms = max(run.due_at_ms, run.scheduled_at_ms)
        return HeldRun(
            run.key,
            worker_id=worker_id,
            attempt=run.attempt + 1,
            tries=run.tries,
            tenant_id=run.tenant_id,
            version=run.version,
            priority=run.priority,
            due_ms=due_ms,
            lease_until_ms=call.lease_until_ms(due_ms, now_ms),
            deferred=True,
            overlap=call.definition.overlap != Overlap.ALLOW,
            call=call,
            shard_index=self._shard.index,
            # Due now, but of a time long ago: a tenant's catch-up must not take the starts of what is on time.
            late=run.trigger == Trigger.CATCH_UP and run.tries == 0,
            held=run.reason == Reason.HELD,
        )


def _taken(runs: Iterable[tuple[RunKey, int]]) -> Part:
    """Each with the end of its lease: where those look who seek its holder, and nobody who claims."""
    rows = sorted((*key, until_ms, Reason.SCHEDULED, taken_lane(key.partition_id)) for key, until_ms in runs)
    return Part("take_deferred", rows=rows)


def _offered_row(run: Waiting, call: CallPlan) -> tuple[object, ...]:
    """A row of ``insert_into_lanes``."""
    lane = offered_lane(run.partition_id, run.tenant_id, call.definition)
    return (*run.key, run.due_at_ms, Reason.SCHEDULED, run.priority, lane, run.tenant_id)


def _sealed_row(run: Waiting, now_ms: int) -> tuple[object, ...]:
    """A row of ``insert_into_lanes``: not before it is due, and to be looked at again a while later."""
    due_at_ms = run.due_at_ms if run.due_at_ms > now_ms else now_ms + SEALED_WAIT_MS
    return (*run.key, due_at_ms, Reason.HELD, run.priority, sealed_lane(run.partition_id), run.tenant_id)


def _about(run: Waiting, kind: NoticeKind = NoticeKind.SKIPPED) -> About:
    return About(kind, run.key, run.tenant_id, run.version)
