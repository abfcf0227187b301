"""Runs that are started and cancelled by hand."""

from __future__ import annotations

from typing import NamedTuple

from engine.model import OPEN_STATES, RunState, SignalKind, Trigger, is_door
from engine.rules.changes import OpenRun
from engine.rules.planning import PlannedTime
from engine.rules.work import CANCEL_GRACE_MS
from engine.store.changes.change import Change, Windows, locked
from engine.store.changes.open_runs import end_rows, open_run
from engine.store.changes.signals import NOBODY, Signalled, insert_signals
from engine.store.changes.times import enter
from engine.store.connection import Connection
from engine.store.jobs import JobRow
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard


class Started(NamedTuple):
    """A run started by hand, by the shard's time, of the job as it was then."""

    scheduled_at_ms: int
    now_ms: int
    job: JobRow


async def start_run(
    shard: Shard, job: JobRow, windows: Windows, finish: Finish[Started] = do_nothing
) -> Started | None:
    """Start a run by hand, at the next free millisecond that is no whole second. None if the job is gone."""

    async def transaction() -> Started | None:
        async with locked(shard, job, windows) as change:
            if change is None:
                return None
            at_ms = await _free_time(change)
            await enter(change, [PlannedTime(at_ms, Trigger.MANUAL)])
            started = Started(at_ms, change.now_ms, change.was)
            await finish(change.connection, started)
            return started

    return await shard.retrying(transaction)


async def _free_time(change: Change) -> int:
    """The next millisecond that no run of the job has and that no schedule can have."""
    bounds = {"from_at": change.now_ms, "to_at": change.now_ms + 60_000}
    answer = await change.connection.execute("run_times_of_job", change.key | bounds)
    taken = {row[0] for row in answer.rows}
    at_ms = change.now_ms
    while at_ms in taken or at_ms % 1000 == 0:
        at_ms += 1
    return at_ms


class Cancelled(NamedTuple):
    """What became of a run that was to be cancelled: its state, and who has to be waited for."""

    state: RunState
    signalled: Signalled = NOBODY


async def cancel_run(
    shard: Shard,
    partition_id: int,
    scheduled_at_ms: int,
    job_id: int,
    finish: Finish[Cancelled] = do_nothing,
) -> Cancelled | None:
    """Cancel an open run: one that waits at once, one that is claimed through its holder. None if there is none."""
    key = {"partition_id": partition_id, "scheduled_at": scheduled_at_ms, "job_id": job_id}

    async def transaction() -> Cancelled | None:
        async with shard.transaction() as connection:
            rows = (await connection.execute("lock_run", key)).rows
            if not rows:
                return None
            cancelled = await _cancel(connection, open_run(rows[0]), shard.packet_bytes_max)
            if cancelled is not None:
                await finish(connection, cancelled)
            return cancelled

    return await shard.retrying(transaction)


async def _cancel(connection: Connection, run: OpenRun, bytes_max: int) -> Cancelled | None:
    now_ms = int((await connection.execute("shard_now")).rows[0][0])
    if run.state == RunState.WITHDRAWN:
        return None
    if run.state == RunState.RUNNING:
        key = {"partition_id": run.partition_id, "scheduled_at": run.scheduled_at_ms, "job_id": run.job_id}
        await connection.execute("request_cancel", key | {"attempt": run.attempt})
        if is_door(run.worker_id):
            await connection.execute("end_lease_soon", key | {"until": now_ms + CANCEL_GRACE_MS})
        return Cancelled(run.state, await insert_signals(connection, SignalKind.CANCEL, [run], now_ms, bytes_max))
    if run.state in OPEN_STATES:
        await end_rows(connection, [run], RunState.CANCELLED, None, now_ms, bytes_max)
        job = [(run.partition_id, run.job_id)]
        await connection.execute_rows("wake_overlap_waiters", job, {"now_ms": now_ms}, bytes_max=bytes_max)
        return Cancelled(RunState.CANCELLED)
    return Cancelled(run.state)
