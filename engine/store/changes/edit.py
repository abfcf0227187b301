"""Edit: what is planned soon stands with its version, what comes later is planned again with the new one."""

from __future__ import annotations

from engine.model import Definition, JobState, VersionEvent
from engine.rules.changes import Deed, on_edit
from engine.rules.planning import plan_job
from engine.store.changes.change import Change, Changed, Windows, delete_labels, locked, write
from engine.store.changes.open_runs import open_runs_between, withdraw
from engine.store.changes.pause import pause, resume
from engine.store.changes.times import (
    can_be_planned,
    enter,
    missed_policy,
    passed_in_pause,
    passed_while_invalid,
    plan_again_from,
    skip_times,
)
from engine.store.jobs import JobRow, first_run_at, label_rows
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard


async def edit_job(
    shard: Shard,
    job: JobRow,
    definition: Definition,
    paused: bool | None,
    windows: Windows,
    finish: Finish[Changed] = do_nothing,
) -> Changed | None:
    """Give a job another definition, and pause or resume it where ``paused`` differs; None if it has changed since."""

    async def transaction() -> Changed | None:
        async with locked(shard, job, windows) as change:
            if change is None or change.was.version != job.version:
                return None
            if paused is True:
                await pause(change)
            await _edit(change, definition)
            if paused is False:
                await resume(change, None)
            changed = await write(change, _edit_event(change, definition))
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def _edit(change: Change, definition: Definition) -> None:
    encoded = definition.encode()
    if encoded == change.was.definition:
        return
    if definition.schedule != change.definition.schedule or change.job.state == JobState.INVALID:
        await _edit_schedule(change, definition)
    elif change.job.state == JobState.ACTIVE:
        await _withdraw_beyond_freeze(change)
    await _replace_labels(change, definition)
    change.definition = definition
    change.planned_version = change.was.version + 1
    change.become(definition=encoded)


async def _edit_schedule(change: Change, definition: Definition) -> None:
    """The old schedule is planned up to the freeze window's end; the new one begins after its last run that stands."""
    if change.job.state == JobState.PAUSED:
        await skip_times(change, passed_in_pause(change))
        change.become(resume_at_ms=first_run_at(definition.schedule, change.now_ms))
        return
    standing_ms = change.now_ms
    if change.job.state == JobState.INVALID or not can_be_planned(change):
        await skip_times(change, passed_while_invalid(change))
    else:
        await _plan_up_to_freeze(change)
        standing_ms = await _withdraw_beyond_freeze(change)
    first_ms = first_run_at(definition.schedule, standing_ms)
    change.become(state=JobState.ACTIVE, next_run_at_ms=first_ms, resume_at_ms=None, note=None)


async def _plan_up_to_freeze(change: Change) -> None:
    job, horizon_at_ms = change.job, change.now_ms + change.windows.freeze_ms
    if job.next_run_at_ms is None or job.next_run_at_ms > horizon_at_ms:
        return
    planned = plan_job(
        change.definition.schedule,
        missed_policy(change.definition),
        next_run_at_ms=job.next_run_at_ms,
        now_ms=change.now_ms,
        horizon_at_ms=horizon_at_ms,
        missed_after_ms=change.windows.missed_after_ms,
        floor_at_ms=change.floor_at_ms,
    )
    await enter(change, planned.times)
    await skip_times(change, planned.skips)
    if planned.times:
        change.become(last_run_at_ms=max(job.last_run_at_ms or 0, planned.times[-1].scheduled_at_ms))


async def _withdraw_beyond_freeze(change: Change) -> int:
    """Also moves the next time back to the earliest run withdrawn, never forward. Returns when the last run that stands
    is due, or now."""
    frozen_until_ms = change.now_ms + change.windows.freeze_ms
    runs = await open_runs_between(change, change.now_ms + 1, change.job.last_run_at_ms or 0)
    withdrawn = [run for run in runs if on_edit(run, frozen_until_ms) is Deed.WITHDRAW]
    await withdraw(change, withdrawn)
    plan_again_from(change, withdrawn, "next_run_at_ms")
    return max([change.now_ms, *(run.scheduled_at_ms for run in runs if run not in withdrawn)])


async def _replace_labels(change: Change, definition: Definition) -> None:
    if definition.labels == change.definition.labels:
        return
    await delete_labels(change)
    rows = sorted(label_rows(change.job, definition))
    if rows:
        await change.connection.execute_rows("insert_labels", rows, bytes_max=change.bytes_max)


def _edit_event(change: Change, definition: Definition) -> VersionEvent:
    if change.was.definition == change.job.definition and change.was.state != change.job.state:
        return VersionEvent.PAUSED if change.job.state == JobState.PAUSED else VersionEvent.RESUMED
    return VersionEvent.EDITED
