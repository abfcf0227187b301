"""Plan: due jobs become runs, nearly all of them born claimed by the worker that plans them.

One transaction per batch: placement, mark and floor FOR SHARE, due jobs FOR UPDATE SKIP LOCKED, their runs inserted,
their next time advanced by compare-and-set. Any number of planners may do this at once: the job's row lock and the
runs' key decide, never the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.config import Settings
from engine.errors import CommitUnknown, Conflict
from engine.events import Events
from engine.model import Definition, NoticeKind, Overlap, Reason, RunKey, RunState, Trigger
from engine.rules.claiming import due_classes
from engine.rules.lanes import lane_of, sealed_lane
from engine.rules.notices import About, notice_row
from engine.rules.peaks import is_quiet, planning_horizon_ms
from engine.rules.planning import JobPlan, PlannedTime, Skip, plan_job
from engine.stages.due import DueJob, DueJobs, Share
from engine.stages.forecast import Forecast
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.versions import CallPlan, Versions
from engine.store.connection import Connection, Duplicate
from engine.store.rollups import note_recounts
from engine.store.shard import Shard
from engine.store.statements import BATCH_ROWS_MAX, time_bounds

# Jobs locked in one transaction: their Python work (some 10 ms) must not hold up firing for longer.
JOBS_PER_BATCH = 1_000
# A job that is due every second has thirty runs within the horizon: what is left of a batch is planned with the next.
RUNS_PER_BATCH = 1_000
# After so many jobs, or runs, the event loop gets a turn: a millisecond or two.
JOBS_PER_TURN = 100
# What is due this soon is planned before anything later.
URGENT_MS = 2_000


class Work(NamedTuple):
    """Where there is something to plan, and what of each class."""

    partitions: list[int]
    shares: list[Share]


class Batch:
    """Everything one transaction writes."""

    def __init__(self) -> None:
        self.claimed: list[HeldRun] = []
        self.runs: list[tuple[object, ...]] = []
        self.deferred: list[tuple[object, ...]] = []
        self.below_mark: list[tuple[int, int]] = []
        self.skips: list[tuple[object, ...]] = []
        self.notices: list[tuple[int, ...]] = []
        self.advances: list[tuple[object, ...]] = []
        self.invalid: list[tuple[object, ...]] = []
        self.sealed: list[str] = []


class Plan:
    """Plans for the partitions that this worker owns on one shard."""

    def __init__(
        self,
        shard: Shard,
        lease: Lease,
        forecast: Forecast,
        held: HeldRuns,
        hold: Callable[[Sequence[HeldRun]], None],
        versions: Versions,
        settings: Settings,
        clock: Clock,
        events: Events,
        is_told: Callable[[int, Definition], bool],
    ) -> None:
        self._shard = shard
        self._lease = lease
        self._forecast = forecast
        self._held = held
        self._hold_runs = hold
        self._versions = versions
        self._settings = settings
        self._clock = clock
        self._events = events
        self._is_told = is_told
        self._due = DueJobs(shard, clock)
        self._unknown: list[HeldRun] = []

    async def run_once(self, now_ms: int) -> bool:
        """One batch; True if there may be more that must not wait."""
        await self._resolve_unknown()
        if not self._lease.partitions or not self._lease.trusted():
            return False
        for horizon_at_ms in self._horizons(now_ms):
            work = await self._work(now_ms, horizon_at_ms)
            if work.partitions:
                batch = await self._plan(work, now_ms, horizon_at_ms)
                if batch.advances:
                    return horizon_at_ms <= now_ms + self._settings.horizon_ms
                # Somebody else holds what is urgent; that must not hold up what is not.
        return False

    def _horizons(self, now_ms: int) -> list[int]:
        """What is urgent, then the usual horizon, then a large second: of that one batch a round, at its own pace."""
        urgent_ms, usual_ms = now_ms + URGENT_MS, now_ms + self._settings.horizon_ms
        if is_quiet(self._forecast.large, now_ms):
            return [urgent_ms]
        early_ms = planning_horizon_ms(self._forecast.large, now_ms, self._settings.horizon_ms)
        return [urgent_ms, usual_ms] + ([early_ms] if early_ms > usual_ms else [])

    async def _work(self, now_ms: int, horizon_at_ms: int) -> Work:
        answer = await self._shard.execute(
            "partitions_with_due_jobs", {"partitions": self._lease.partitions, "horizon_at": horizon_at_ms}
        )
        first_ms: dict[int, int] = {}
        for _, priority, at_ms in answer.rows:
            first_ms[priority] = min(at_ms, first_ms.get(priority, at_ms))
        partitions = sorted({row[0] for row in answer.rows})
        classes = due_classes(first_ms, now_ms, horizon_at_ms, JOBS_PER_BATCH)
        return Work(partitions, await self._due.shares(partitions, classes, now_ms))

    async def _plan(self, work: Work, now_ms: int, horizon_at_ms: int) -> Batch:
        batch = Batch()

        async def transaction() -> Batch:
            nonlocal batch
            batch = Batch()
            async with self._shard.transaction() as connection:
                await self._fill(batch, connection, work, now_ms, horizon_at_ms)
                await self._write(batch, connection, now_ms)
            return batch

        try:
            await self._shard.retrying(transaction)
        except CommitUnknown:
            self._unknown = batch.claimed
            raise
        self._hold(batch.claimed)
        self._events.emit("run.planned", runs=len(batch.runs), jobs=len(batch.advances), shard=self._shard.index)
        if batch.sealed:
            self._events.emit("run.sealed", runs=len(batch.sealed), error=batch.sealed[0], shard=self._shard.index)
        return batch

    async def _fill(
        self, batch: Batch, connection: Connection, work: Work, now_ms: int, horizon_at_ms: int
    ) -> None:
        shared = (await connection.execute("share_planning_rows", {"partitions": work.partitions})).rows
        marks = {partition_id: mark_at for partition_id, mark_at, *_ in shared}
        if not marks:
            return
        floor_at_ms = shared[0][2]
        bytes_max = self._shard.packet_bytes_max
        jobs = await self._due.lock(connection, sorted(marks), work.shares, bytes_max)
        plans = await self._versions.load(connection, [job.version_key for job in jobs], bytes_max)
        room = self._held.room_ahead() if self._lease.may_claim_ahead() else 0
        turn_at = JOBS_PER_TURN
        for position, job in enumerate(jobs):
            if len(batch.runs) >= RUNS_PER_BATCH:
                break
            if position + len(batch.runs) >= turn_at:
                turn_at = position + len(batch.runs) + JOBS_PER_TURN
                await asyncio.sleep(0)
            call = plans[job.version_key]
            mark_at_ms = marks[job.partition_id]
            planned = self._plan_job(batch, job, call, now_ms, horizon_at_ms, floor_at_ms)
            if planned is not None and isinstance(call, CallPlan):
                self._enter(batch, job, call, planned, now_ms, mark_at_ms, room)

    def _plan_job(
        self,
        batch: Batch,
        job: DueJob,
        call: CallPlan | Exception,
        now_ms: int,
        horizon_at_ms: int,
        floor_at_ms: int,
    ) -> JobPlan | None:
        """The job's plan; a job that cannot be evaluated is set aside instead and delays no other."""
        try:
            if isinstance(call, Exception):
                raise call
            return plan_job(
                call.definition.schedule,
                call.policy,
                next_run_at_ms=job.next_run_at_ms,
                now_ms=now_ms,
                horizon_at_ms=horizon_at_ms,
                missed_after_ms=self._settings.missed_after_ms,
                floor_at_ms=floor_at_ms,
            )
        except Exception as error:
            batch.invalid.append((job.partition_id, job.job_id, job.version, job.next_run_at_ms))
            self._events.emit("job.invalid", job_id=job.job_id, error=error)
            return None

    def _enter(
        self, batch: Batch, job: DueJob, call: CallPlan, planned: JobPlan, now_ms: int, mark_at_ms: int, room: int
    ) -> None:
        for time in planned.times:
            if _may_be_born_claimed(time, call, mark_at_ms) and len(batch.claimed) < room:
                self._enter_claimed(batch, job, call, time, now_ms)
            else:
                _enter_deferred(batch, job, call, time, now_ms, mark_at_ms)
        self._skip(batch, job, call, planned.skips, now_ms)
        # Never back: a change looks for open runs up to here, and what an edit let stand may lie beyond these times.
        times_ms = [time.scheduled_at_ms for time in planned.times]
        last_run_at_ms = max([*times_ms, job.last_run_at_ms or 0]) or None
        batch.advances.append(
            (job.partition_id, job.job_id, job.version, job.next_run_at_ms, planned.next_run_at_ms, last_run_at_ms)
        )

    def _skip(self, batch: Batch, job: DueJob, call: CallPlan, skips: Sequence[Skip], now_ms: int) -> None:
        """Ranges that get no run are on record, and their tenant is told."""
        is_told = bool(skips) and self._is_told(job.tenant_id, call.definition)
        for skip in skips:
            batch.skips.append((job.partition_id, job.job_id, *skip, job.version, now_ms))
            if is_told:
                key = RunKey(job.partition_id, skip.from_at_ms, job.job_id)
                about = About(NoticeKind.SKIPPED, key, job.tenant_id, job.version, skip.skipped)
                batch.notices.append(notice_row(about, now_ms))

    def _enter_claimed(self, batch: Batch, job: DueJob, call: CallPlan, time: PlannedTime, now_ms: int) -> None:
        key = RunKey(job.partition_id, time.scheduled_at_ms, job.job_id)
        run = HeldRun(
            key,
            worker_id=self._lease.worker_id,
            attempt=1,
            tries=0,
            tenant_id=job.tenant_id,
            version=job.version,
            priority=call.definition.priority,
            due_ms=time.scheduled_at_ms,
            lease_until_ms=call.lease_until_ms(time.scheduled_at_ms, now_ms),
            deferred=False,
            overlap=False,
            call=call,
            shard_index=self._shard.index,
        )
        batch.claimed.append(run)
        batch.runs.append(
            (*key, job.tenant_id, job.version, RunState.RUNNING, call.definition.priority, time.trigger, 1,
             self._lease.worker_id, run.lease_until_ms)
        )  # fmt: skip

    async def _write(self, batch: Batch, connection: Connection, now_ms: int) -> None:
        bytes_max = self._shard.packet_bytes_max
        if batch.runs:
            await self._insert_runs(batch, connection)
        if batch.deferred:
            await connection.execute_rows("insert_into_lanes", sorted(batch.deferred), bytes_max=bytes_max)
            await note_recounts(connection, batch.below_mark, now_ms, bytes_max)
        if batch.skips:
            await connection.execute_rows("insert_skips", sorted(batch.skips), bytes_max=bytes_max)
        if batch.notices:
            await connection.execute_rows("insert_notices", sorted(batch.notices), bytes_max=bytes_max)
        if batch.advances:
            found = await connection.execute_rows("advance_jobs", sorted(batch.advances), bytes_max=bytes_max)
            if found != len(batch.advances):
                raise Conflict(f"advanced {found} of {len(batch.advances)} jobs")
        if batch.invalid:
            note = {"note": "its schedule cannot be evaluated; edit the job to set it right"}
            await connection.execute_rows("quarantine_jobs", sorted(batch.invalid), note, bytes_max=bytes_max)

    async def _insert_runs(self, batch: Batch, connection: Connection) -> None:
        batch.runs.sort(key=_key_of)
        await connection.savepoint()
        try:
            await connection.execute_rows("insert_runs", batch.runs, bytes_max=self._shard.packet_bytes_max)
        except Duplicate:
            await connection.rollback_to_savepoint()
            await self._insert_over_what_is_there(batch, connection)

    async def _insert_over_what_is_there(self, batch: Batch, connection: Connection) -> None:
        """An existing row is left alone, unless it was withdrawn: then it is opened again with the next attempt."""
        bytes_max = self._shard.packet_bytes_max
        days = time_bounds(batch.runs)
        keys = [row[:3] for row in batch.runs]
        rows = await connection.fetch_rows("lock_runs_of_keys", keys, days, bytes_max=bytes_max)
        there = {RunKey(*row[:3]): row for row in rows}
        withdrawn = {key: row[4] for key, row in there.items() if row[3] == RunState.WITHDRAWN}
        left_alone = there.keys() - withdrawn.keys()
        new = [row for row in batch.runs if _key_of(row) not in there]
        reopened = [_reopened(row, withdrawn[key]) for row in batch.runs if (key := _key_of(row)) in withdrawn]
        if new:
            await connection.execute_rows("insert_runs", new, bytes_max=bytes_max)
        if reopened:
            await connection.execute_rows("reopen_runs", reopened, days, bytes_max=bytes_max)
        batch.deferred = [row for row in batch.deferred if _key_of(row) not in left_alone]
        batch.claimed = [run for run in batch.claimed if run.key not in left_alone]
        for run in batch.claimed:
            run.attempt = withdrawn.get(run.key, 0) + 1

    def _hold(self, runs: Sequence[HeldRun]) -> None:
        if runs:
            self._hold_runs(runs)

    async def _resolve_unknown(self) -> None:
        """After a lost COMMIT: hold those runs that stand under our name, before anything else is planned here."""
        if not self._unknown:
            return
        rows = [(*run.key, run.attempt) for run in self._unknown]
        async with self._shard.connection() as connection:
            found = await connection.fetch_rows(
                "my_planned_runs",
                rows,
                {**time_bounds(rows), "worker_id": self._unknown[0].worker_id},
                bytes_max=self._shard.packet_bytes_max,
            )
        mine = {(RunKey(*row[:3]), row[3]) for row in found}
        unknown, self._unknown = self._unknown, []
        self._hold([run for run in unknown if run.identity in mine])
        self._events.emit("commit.resolved", step="plan", stood=len(mine), asked=len(unknown))


def _may_be_born_claimed(time: PlannedTime, call: CallPlan, mark_at_ms: int) -> bool:
    """Whatever is due at another time than its scheduled one, or below the mark, or must not overlap, is not; nor what
    is a function's, which waits for the tenant's workers."""
    return (
        time.trigger == Trigger.SCHEDULE
        and time.scheduled_at_ms >= mark_at_ms
        and call.definition.overlap == Overlap.ALLOW
        and call.target is not None
    )


def _enter_deferred(
    batch: Batch, job: DueJob, call: CallPlan, time: PlannedTime, now_ms: int, mark_at_ms: int
) -> None:
    key = RunKey(job.partition_id, time.scheduled_at_ms, job.job_id)
    batch.runs.append(
        (*key, job.tenant_id, job.version, RunState.WAITING, call.definition.priority, time.trigger, 0, None, None)
    )
    reason = Reason.CATCH_UP if time.trigger == Trigger.CATCH_UP else Reason.SCHEDULED
    lane = lane_of(job.partition_id, job.tenant_id, call.definition)
    if call.sealed:
        lane = sealed_lane(job.partition_id)
        batch.sealed.append(call.sealed)
    # Late is late when it is claimed and fired, too; a time that is caught up is due when it is planned.
    due_at_ms = max(now_ms, time.scheduled_at_ms) if time.trigger == Trigger.CATCH_UP else time.scheduled_at_ms
    priority = call.definition.priority
    batch.deferred.append((*key, due_at_ms, reason, priority, lane, job.tenant_id))
    if time.scheduled_at_ms < mark_at_ms:
        batch.below_mark.append((key.partition_id, key.scheduled_at_ms))


def _key_of(row: Sequence[object]) -> tuple[object, ...]:
    return tuple(row[:3])


def _reopened(row: tuple[object, ...], attempt_there: int) -> tuple[object, ...]:
    """A row of ``insert_runs`` as one of ``reopen_runs``."""
    partition_id, scheduled_at, job_id, _, version, state, priority, _, _, worker_id, lease_until = row
    return partition_id, scheduled_at, job_id, version, state, priority, attempt_there + 1, worker_id, lease_until


assert JOBS_PER_BATCH <= BATCH_ROWS_MAX  # noqa: S101 - one statement advances a batch
