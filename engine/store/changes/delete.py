"""Delete: what is already due is on record as skipped, the future is withdrawn."""

from __future__ import annotations

from engine.model import JobState, Reason, RunState, VersionEvent
from engine.rules.changes import Deed, on_delete
from engine.store.changes.change import Change, Changed, Windows, delete_labels, locked, write
from engine.store.changes.open_runs import end_runs, open_runs, withdraw
from engine.store.changes.times import never_planned, skip_times
from engine.store.jobs import JobRow
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard


async def delete_job(
    shard: Shard, job: JobRow, windows: Windows, finish: Finish[Changed] = do_nothing
) -> Changed | None:
    """Delete; its history stays. None if it is gone already or has changed since."""

    async def transaction() -> Changed | None:
        async with locked(shard, job, windows) as change:
            if change is None or change.was.version != job.version:
                return None
            await _delete(change)
            changed = await write(change, VersionEvent.DELETED)
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def _delete(change: Change) -> None:
    deeds = {run: on_delete(run, change.now_ms) for run in await open_runs(change)}
    await withdraw(change, [run for run, deed in deeds.items() if deed is Deed.WITHDRAW])
    ended = [run for run, deed in deeds.items() if deed is Deed.SKIP]
    await end_runs(change, ended, RunState.SKIPPED, Reason.DELETED)
    change.told += [run for run, deed in deeds.items() if deed is Deed.ASK]
    await skip_times(change, never_planned(change))
    await delete_labels(change)
    change.become(state=JobState.DELETED, next_run_at_ms=None, resume_at_ms=None)
