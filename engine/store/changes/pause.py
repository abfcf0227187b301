"""Pause and resume: a pause takes back what has not started, a resume decides about the times inside it."""

from __future__ import annotations

from engine.model import JobState, MissedRuns, Reason, RunState, Trigger, VersionEvent
from engine.rules.changes import Deed, OpenRun, on_pause
from engine.rules.planning import PlannedTime, settle_missed
from engine.rules.schedule import next_time
from engine.store.changes.change import Change, Changed, Windows, locked, write
from engine.store.changes.open_runs import end_runs, hold, open_runs, replaced_among, withdraw
from engine.store.changes.times import enter, missed_policy, plan_again_from, skip_times
from engine.store.jobs import JobRow
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard


async def pause_job(
    shard: Shard, job: JobRow, note: str | None, windows: Windows, finish: Finish[Changed] = do_nothing
) -> Changed | None:
    """Pause; a paused job stays as it is, but for the note, and an invalid one as well. None if the job is gone."""

    async def transaction() -> Changed | None:
        async with locked(shard, job, windows) as change:
            if change is None:
                return None
            changed = await _paused(change, note)
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def resume_job(
    shard: Shard,
    job: JobRow,
    missed_runs: MissedRuns | None,
    windows: Windows,
    finish: Finish[Changed] = do_nothing,
) -> Changed | None:
    """Resume; ``missed_runs`` overrides the job's own for this once. A job that is not paused stays as it is."""

    async def transaction() -> Changed | None:
        async with locked(shard, job, windows) as change:
            if change is None:
                return None
            changed = await _resumed(change, missed_runs)
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def _paused(change: Change, note: str | None) -> Changed:
    again = change.was.state == JobState.PAUSED and note in (None, change.was.note)
    if again or change.was.state == JobState.INVALID:
        return Changed(change.was, None)
    await pause(change)
    change.become(note=note)
    return await write(change, VersionEvent.PAUSED)


async def pause(change: Change) -> None:
    """What has not started is taken back, held or skipped; the job is written by the caller."""
    if change.job.state != JobState.ACTIVE:
        return
    change.become(state=JobState.PAUSED, next_run_at_ms=None, resume_at_ms=change.job.next_run_at_ms)
    runs = await open_runs(change)
    current = {(change.was.partition_id, change.was.job_id): change.was.version}
    replaced = await replaced_among(change.connection, runs, current, change.bytes_max)
    deeds = {run: _deed(change, run, run in replaced) for run in runs}
    withdrawn = [run for run, deed in deeds.items() if deed is Deed.WITHDRAW]
    await withdraw(change, withdrawn)
    ended = [run for run, deed in deeds.items() if deed is Deed.SKIP]
    await end_runs(change, ended, RunState.SKIPPED, Reason.PAUSED)
    change.told += [run for run in ended if run.worker_id is not None]
    await hold(change, [run for run, deed in deeds.items() if deed is Deed.HOLD])
    change.told += [run for run, deed in deeds.items() if deed is Deed.ASK]
    plan_again_from(change, withdrawn, "resume_at_ms")


def _deed(change: Change, run: OpenRun, replaced: bool) -> Deed:
    """Below the floor nothing is planned again: what would be taken back waits there."""
    deed = on_pause(run, change.now_ms, replaced)
    return Deed.HOLD if deed is Deed.WITHDRAW and run.scheduled_at_ms < change.floor_at_ms else deed


async def _resumed(change: Change, missed_runs: MissedRuns | None) -> Changed:
    if change.was.state != JobState.PAUSED:
        return Changed(change.was, change.was.next_run_at_ms)
    await resume(change, missed_runs)
    return await write(change, VersionEvent.RESUMED)


async def resume(change: Change, missed_runs: MissedRuns | None) -> None:
    """Every time inside the pause is missed, however short ago: the policy decides, on record."""
    if change.job.state != JobState.PAUSED:
        return
    next_ms = change.job.resume_at_ms
    schedule = change.definition.schedule
    if next_ms is not None and next_ms <= change.now_ms:
        policy = missed_policy(change.definition)
        policy = policy if missed_runs is None else policy._replace(missed_runs=missed_runs)
        wanted, skips = settle_missed(schedule, policy, next_ms, change.now_ms, change.floor_at_ms)
        await enter(change, [PlannedTime(at_ms, Trigger.CATCH_UP) for at_ms in wanted])
        await skip_times(change, skips)
        change.become(last_run_at_ms=max([change.job.last_run_at_ms or 0, *wanted]) or None)
        next_ms = next_time(schedule, change.now_ms)
    await change.connection.execute("release_held", change.key | {"now_ms": change.now_ms})
    change.become(state=JobState.ACTIVE, next_run_at_ms=next_ms, resume_at_ms=None, note=None)
