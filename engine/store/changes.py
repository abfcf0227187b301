"""Changes of a job: edit, pause, resume, delete, and starting or cancelling a run by hand.

Each is one transaction under the job's row lock, judged by the shard's time read under that lock, and writes an
immutable version. A change that touches claimed runs leaves signals for those who hold them, in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from engine.errors import Conflict, Misplaced
from engine.model import (
    OPEN_STATES,
    Definition,
    JobState,
    MissedRuns,
    Reason,
    RunKey,
    RunState,
    SignalKind,
    Trigger,
    VersionEvent,
)
from engine.rules.changes import (
    HELD_UNTIL_MS,
    START_MARGIN_MS,
    Deed,
    OpenRun,
    on_delete,
    on_edit,
    on_pause,
    on_taken_back,
)
from engine.rules.planning import MissedPolicy, PlannedTime, Skip, plan_job, settle_missed, skipped_range
from engine.rules.schedule import next_time
from engine.store.connection import Connection, Row
from engine.store.jobs import JobRow, first_run_at, job_row, label_rows, version_row
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard

# How long an answer waits for those who hold a changed run to obey.
OBEY_WAIT_MS = 1_000
OBEY_POLL_MS = 50


class Windows(NamedTuple):
    """The settings that decide how far a change reaches."""

    freeze_ms: int = 30_000
    missed_after_ms: int = 300_000


class Signalled(NamedTuple):
    """A range of signals that were written; empty where ``last_id`` is below ``first_id``."""

    first_id: int
    last_id: int


NOBODY = Signalled(0, -1)


class Changed(NamedTuple):
    """A job after a change: the first run that fires with it, and who has to be waited for."""

    job: JobRow
    effective_from_ms: int | None
    signalled: Signalled = NOBODY


class Started(NamedTuple):
    """A run started by hand, by the shard's time, of the job as it was then."""

    scheduled_at_ms: int
    now_ms: int
    job: JobRow


@dataclass(slots=True)
class Change:
    """One transaction's view of a locked job, and what it is going to be."""

    connection: Connection
    bytes_max: int
    windows: Windows
    was: JobRow
    definition: Definition
    now_ms: int
    mark_at_ms: int
    floor_at_ms: int
    job: JobRow
    planned_version: int
    told: list[OpenRun] = field(default_factory=list)

    def become(self, **fields: object) -> None:
        self.job = self.job._replace(**fields)  # type: ignore[arg-type]

    @property
    def key(self) -> dict[str, int]:
        return {"partition_id": self.was.partition_id, "job_id": self.was.job_id}


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
        async with _locked(shard, job, windows) as change:
            if change is None or change.was.version != job.version:
                return None
            if paused is True:
                await _pause(change)
            await _edit(change, definition)
            if paused is False:
                await _resume(change, None)
            changed = await _write(change, _edit_event(change, definition))
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def pause_job(
    shard: Shard, job: JobRow, note: str | None, windows: Windows, finish: Finish[Changed] = do_nothing
) -> Changed | None:
    """Pause; a paused job stays as it is, but for the note, and an invalid one as well. None if the job is gone."""

    async def transaction() -> Changed | None:
        async with _locked(shard, job, windows) as change:
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
        async with _locked(shard, job, windows) as change:
            if change is None:
                return None
            changed = await _resumed(change, missed_runs)
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def delete_job(
    shard: Shard, job: JobRow, windows: Windows, finish: Finish[Changed] = do_nothing
) -> Changed | None:
    """Delete; its history stays. None if it is gone already or has changed since."""

    async def transaction() -> Changed | None:
        async with _locked(shard, job, windows) as change:
            if change is None or change.was.version != job.version:
                return None
            await _delete(change)
            changed = await _write(change, VersionEvent.DELETED)
            await finish(change.connection, changed)
            return changed

    return await shard.retrying(transaction)


async def start_run(
    shard: Shard, job: JobRow, windows: Windows, finish: Finish[Started] = do_nothing
) -> Started | None:
    """Start a run by hand, at the next free millisecond that is no whole second. None if the job is gone."""

    async def transaction() -> Started | None:
        async with _locked(shard, job, windows) as change:
            if change is None:
                return None
            at_ms = await _free_time(change)
            await _enter(change, [PlannedTime(at_ms, Trigger.MANUAL)])
            started = Started(at_ms, change.now_ms, change.was)
            await finish(change.connection, started)
            return started

    return await shard.retrying(transaction)


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
        return Cancelled(run.state, await _insert_signals(connection, SignalKind.CANCEL, [run], now_ms, bytes_max))
    if run.state in OPEN_STATES:
        await _end_rows(connection, [run], RunState.CANCELLED, None, now_ms, bytes_max)
        job = [(run.partition_id, run.job_id)]
        await connection.execute_rows("wake_overlap_waiters", job, {"now_ms": now_ms}, bytes_max=bytes_max)
        return Cancelled(RunState.CANCELLED)
    return Cancelled(run.state)


async def wait_obeyed(shard: Shard, signalled: Signalled) -> bool:
    """Until every holder has obeyed, for at most OBEY_WAIT_MS; False if one has not (it may be dead)."""
    if signalled.last_id < signalled.first_id:
        return True
    for _ in range(OBEY_WAIT_MS // OBEY_POLL_MS):
        answer = await shard.execute("signals_left", signalled._asdict())
        if answer.rows[0][0] == 0:
            return True
        await asyncio.sleep(OBEY_POLL_MS / 1000)
    return False


async def take_back(shard: Shard, worker_id: int, runs: Sequence[tuple[RunKey, int]], now_ms: int) -> int:
    """For a worker that was told WITHDRAWN of runs (key, attempt) which it has not started and will not start: they go
    where the change of their job wants them. What is no longer its own is left alone; returns how many were."""

    async def transaction() -> int:
        async with shard.transaction() as connection:
            jobs = sorted({(key.partition_id, key.job_id) for key, _ in runs})
            rows = await connection.fetch_rows("lock_job_states", jobs, bytes_max=shard.packet_bytes_max)
            states = {(row[0], row[1]): JobState(row[2]) for row in rows}
            mine = await _lock_unstarted(connection, worker_id, runs, shard.packet_bytes_max)
            versions = {(row[0], row[1]): row[3] for row in rows}
            replaced = await _replaced(connection, mine, versions, shard.packet_bytes_max)
            deeds = {
                run: on_taken_back(run, states[run.partition_id, run.job_id], now_ms, run in replaced) for run in mine
            }
            await _put_back(connection, deeds, states, now_ms, shard.packet_bytes_max)
            return len(mine)

    return await shard.retrying(transaction) if runs else 0


async def _lock_unstarted(
    connection: Connection, worker_id: int, runs: Sequence[tuple[RunKey, int]], bytes_max: int
) -> list[OpenRun]:
    keys = sorted((*key, attempt) for key, attempt in runs)
    times = [key.scheduled_at_ms for key, _ in runs]
    values = {"from_at": min(times), "to_at": max(times), "worker_id": worker_id}
    rows = await connection.fetch_rows("lock_unstarted_runs", keys, values, bytes_max=bytes_max)
    return [open_run(row) for row in rows]


async def _replaced(
    connection: Connection, runs: Sequence[OpenRun], current: Mapping[tuple[int, int], int], bytes_max: int
) -> set[OpenRun]:
    """Those runs whose job has been given another schedule since they were planned; ``current``: the version of each
    job. One that has got its old schedule back counts: what that plans begins after these runs."""
    oldest: dict[tuple[int, int], int] = {}
    for run in runs:
        job = run.partition_id, run.job_id
        oldest[job] = min(run.version, oldest.get(job, run.version))
    keys = [(*job, version) for job in sorted(oldest) for version in range(oldest[job], current[job] + 1)]
    if len(keys) == len(oldest):
        return set()
    rows = await connection.fetch_rows("read_versions", keys, bytes_max=bytes_max)
    schedules = {(row[0], row[1], row[2]): Definition.decode(row[3]).schedule for row in rows}
    since = dict(oldest)
    for was, key in pairwise(sorted(schedules)):
        if was[:2] == key[:2] and schedules[was] != schedules[key]:
            since[key[0], key[1]] = key[2]
    return {run for run in runs if run.version < since[run.partition_id, run.job_id]}


async def _put_back(
    connection: Connection,
    deeds: Mapping[OpenRun, Deed],
    states: Mapping[tuple[int, int], JobState],
    now_ms: int,
    bytes_max: int,
) -> None:
    withdrawn = [run for run, deed in deeds.items() if deed is Deed.WITHDRAW]
    if withdrawn:
        await _withdraw_rows(connection, withdrawn, bytes_max)
        earlier = sorted((run.partition_id, run.job_id, run.scheduled_at_ms) for run in withdrawn)
        await connection.execute_rows("resume_earlier", earlier, bytes_max=bytes_max)
    for reason, paused in ((Reason.PAUSED, True), (Reason.DELETED, False)):
        ended = [
            run
            for run, deed in deeds.items()
            if deed is Deed.SKIP and paused == (states[run.partition_id, run.job_id] == JobState.PAUSED)
        ]
        if ended:
            await _end_rows(connection, ended, RunState.SKIPPED, reason, now_ms, bytes_max)
    waiting = [run for run, deed in deeds.items() if deed in (Deed.HOLD, Deed.STAND)]
    if waiting:
        await connection.execute_rows("let_runs_wait", _fences(waiting), _bounds(waiting), bytes_max=bytes_max)
        due = [(*run[:3], *_due_again(run, deeds[run], now_ms)) for run in waiting]
        await connection.execute_rows("insert_deferred", sorted(due), bytes_max=bytes_max)


def _due_again(run: OpenRun, deed: Deed, now_ms: int) -> tuple[int, Reason]:
    if deed is Deed.HOLD:
        return HELD_UNTIL_MS, Reason.HELD
    return max(now_ms, run.scheduled_at_ms), Reason.GIVEN_BACK


def open_run(row: Row) -> OpenRun:
    """A row of ``lock_open_runs_of_job`` or ``lock_run``."""
    partition_id, scheduled_at, job_id, state, attempt, tries, worker_id, trigger, version = row
    return OpenRun(
        partition_id, scheduled_at, job_id, RunState(state), attempt, tries, worker_id, Trigger(trigger), version
    )  # fmt: skip


@asynccontextmanager
async def _locked(shard: Shard, job: JobRow, windows: Windows) -> AsyncIterator[Change | None]:
    """A transaction that holds placement, mark and floor FOR SHARE, then the job; None if the job is gone."""
    async with shard.transaction() as connection:
        shared = (await connection.execute("share_planning_rows", {"partitions": [job.partition_id]})).rows
        if not shared:
            raise Misplaced([job.partition_id])
        key = {"partition_id": job.partition_id, "job_id": job.job_id}
        rows = (await connection.execute("lock_job", key)).rows
        if not rows:
            yield None
            return
        locked, now_ms = job_row(rows[0]), int(rows[0][13])
        yield Change(
            connection=connection,
            bytes_max=shard.packet_bytes_max,
            windows=windows,
            was=locked,
            definition=Definition.decode(locked.definition),
            now_ms=now_ms,
            mark_at_ms=shared[0][1],
            floor_at_ms=shared[0][2],
            job=locked,
            planned_version=locked.version,
        )


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
        await _skip(change, _passed_in_pause(change))
        change.become(resume_at_ms=first_run_at(definition.schedule, change.now_ms))
        return
    standing_ms = change.now_ms
    if change.job.state == JobState.ACTIVE:
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
        _policy(change.definition),
        next_run_at_ms=job.next_run_at_ms,
        now_ms=change.now_ms,
        horizon_at_ms=horizon_at_ms,
        missed_after_ms=change.windows.missed_after_ms,
        floor_at_ms=change.floor_at_ms,
    )
    await _enter(change, planned.times)
    await _skip(change, planned.skips)
    if planned.times:
        change.become(last_run_at_ms=max(job.last_run_at_ms or 0, planned.times[-1].scheduled_at_ms))


async def _withdraw_beyond_freeze(change: Change) -> int:
    """Also moves the next time back to the earliest run withdrawn, never forward. Returns when the last run that stands
    is due, or now."""
    frozen_until_ms = change.now_ms + change.windows.freeze_ms
    runs = await _open_runs_between(change, change.now_ms + 1, change.job.last_run_at_ms or 0)
    withdrawn = [run for run in runs if on_edit(run, frozen_until_ms) is Deed.WITHDRAW]
    await _withdraw(change, withdrawn)
    _plan_again_from(change, withdrawn, "next_run_at_ms")
    return max([change.now_ms, *(run.scheduled_at_ms for run in runs if run not in withdrawn)])


async def _paused(change: Change, note: str | None) -> Changed:
    again = change.was.state == JobState.PAUSED and note in (None, change.was.note)
    if again or change.was.state == JobState.INVALID:
        return Changed(change.was, None)
    await _pause(change)
    change.become(note=note)
    return await _write(change, VersionEvent.PAUSED)


async def _pause(change: Change) -> None:
    if change.job.state != JobState.ACTIVE:
        return
    change.become(state=JobState.PAUSED, next_run_at_ms=None, resume_at_ms=change.job.next_run_at_ms)
    runs = await _open_runs(change)
    current = {(change.was.partition_id, change.was.job_id): change.was.version}
    replaced = await _replaced(change.connection, runs, current, change.bytes_max)
    deeds = {run: on_pause(run, change.now_ms, run in replaced) for run in runs}
    withdrawn = [run for run, deed in deeds.items() if deed is Deed.WITHDRAW]
    await _withdraw(change, withdrawn)
    ended = [run for run, deed in deeds.items() if deed is Deed.SKIP]
    await _end_here(change, ended, RunState.SKIPPED, Reason.PAUSED)
    change.told += [run for run in ended if run.worker_id is not None]
    await _hold(change, [run for run, deed in deeds.items() if deed is Deed.HOLD])
    change.told += [run for run, deed in deeds.items() if deed is Deed.ASK]
    _plan_again_from(change, withdrawn, "resume_at_ms")


async def _resumed(change: Change, missed_runs: MissedRuns | None) -> Changed:
    if change.was.state != JobState.PAUSED:
        return Changed(change.was, change.was.next_run_at_ms)
    await _resume(change, missed_runs)
    return await _write(change, VersionEvent.RESUMED)


async def _resume(change: Change, missed_runs: MissedRuns | None) -> None:
    """Every time inside the pause is missed, however short ago: the policy decides, on record."""
    if change.job.state != JobState.PAUSED:
        return
    next_ms = change.job.resume_at_ms
    schedule = change.definition.schedule
    if next_ms is not None and next_ms <= change.now_ms:
        policy = _policy(change.definition)
        policy = policy if missed_runs is None else policy._replace(missed_runs=missed_runs)
        wanted, skips = settle_missed(schedule, policy, next_ms, change.now_ms, change.floor_at_ms)
        await _enter(change, [PlannedTime(at_ms, Trigger.CATCH_UP) for at_ms in wanted])
        await _skip(change, skips)
        change.become(last_run_at_ms=max([change.job.last_run_at_ms or 0, *wanted]) or None)
        next_ms = next_time(schedule, change.now_ms)
    await change.connection.execute("release_held", change.key | {"now_ms": change.now_ms})
    change.become(state=JobState.ACTIVE, next_run_at_ms=next_ms, resume_at_ms=None, note=None)


async def _delete(change: Change) -> None:
    deeds = {run: on_delete(run, change.now_ms) for run in await _open_runs(change)}
    await _withdraw(change, [run for run, deed in deeds.items() if deed is Deed.WITHDRAW])
    ended = [run for run, deed in deeds.items() if deed is Deed.SKIP]
    await _end_here(change, ended, RunState.SKIPPED, Reason.DELETED)
    change.told += [run for run, deed in deeds.items() if deed is Deed.ASK]
    await _skip(change, _never_planned(change))
    await _delete_labels(change)
    change.become(state=JobState.DELETED, next_run_at_ms=None, resume_at_ms=None)


def _passed_in_pause(change: Change) -> list[Skip]:
    """Times inside a pause whose schedule is being replaced: nobody can catch them up."""
    return _unplanned_until_now(change, change.job.resume_at_ms, Reason.PAUSED)


def _never_planned(change: Change) -> list[Skip]:
    if change.job.state == JobState.PAUSED:
        return _passed_in_pause(change)
    return _unplanned_until_now(change, change.job.next_run_at_ms, Reason.DELETED)


def _unplanned_until_now(change: Change, from_ms: int | None, reason: Reason) -> list[Skip]:
    if from_ms is None or from_ms > change.now_ms:
        return []
    skip = skipped_range(change.definition.schedule, from_ms - 1, change.now_ms, reason)
    return [skip] if skip else []


def _plan_again_from(change: Change, withdrawn: Sequence[OpenRun], cursor: str) -> None:
    if not withdrawn:
        return
    earliest_ms = min(run.scheduled_at_ms for run in withdrawn)
    was_ms = getattr(change.job, cursor)
    last_ms = change.job.last_run_at_ms
    change.become(
        **{cursor: earliest_ms if was_ms is None else min(was_ms, earliest_ms)},
        last_run_at_ms=None if last_ms is None else min(last_ms, earliest_ms - 1),
    )


def _policy(definition: Definition) -> MissedPolicy:
    return MissedPolicy(definition.missed_runs, definition.max_catch_up)


async def _open_runs(change: Change) -> list[OpenRun]:
    """Every open run of the job: from the mark up by the runs themselves, below it by their rows in deferred."""
    from_ms = min(change.mark_at_ms, change.now_ms)
    to_ms = max(change.was.last_run_at_ms or 0, change.now_ms + 1_000)
    runs = await _open_runs_between(change, from_ms, to_ms)
    answer = await change.connection.execute("deferred_of_job", change.key)
    below = [row[0] for row in answer.rows if row[0] < from_ms]
    if below:
        rows = [(change.was.partition_id, at_ms, change.was.job_id) for at_ms in below]
        found = await change.connection.fetch_rows(
            "lock_open_runs_by_key", rows, {"from_at": below[0], "to_at": below[-1]}, bytes_max=change.bytes_max
        )
        runs += map(open_run, found)
    return runs


async def _open_runs_between(change: Change, from_ms: int, to_ms: int) -> list[OpenRun]:
    answer = await change.connection.execute("lock_open_runs_of_job", change.key | {"from_at": from_ms, "to_at": to_ms})
    return [open_run(row) for row in answer.rows]


async def _withdraw(change: Change, runs: Sequence[OpenRun]) -> None:
    if not runs:
        return
    await _withdraw_rows(change.connection, runs, change.bytes_max)
    change.told += [run for run in runs if run.worker_id is not None]


async def _withdraw_rows(connection: Connection, runs: Sequence[OpenRun], bytes_max: int) -> None:
    found = await connection.execute_rows("withdraw_runs", _fences(runs), _bounds(runs), bytes_max=bytes_max)
    if found != len(runs):
        raise Conflict(f"withdrew {found} of {len(runs)} runs")
    await _forget(connection, runs, bytes_max)


async def _hold(change: Change, runs: Sequence[OpenRun]) -> None:
    """Their rows in deferred become due at no time that comes."""
    if runs:
        rows = sorted((*run[:3], HELD_UNTIL_MS, Reason.HELD) for run in runs)
        await change.connection.execute_rows("insert_deferred", rows, bytes_max=change.bytes_max)


async def _end_here(change: Change, runs: Sequence[OpenRun], state: RunState, reason: Reason) -> None:
    if runs:
        await _end_rows(change.connection, runs, state, reason, change.now_ms, change.bytes_max)


async def _end_rows(
    connection: Connection,
    runs: Sequence[OpenRun],
    state: RunState,
    reason: Reason | None,
    now_ms: int,
    bytes_max: int,
) -> None:
    values = _bounds(runs) | {"state": state, "reason": reason, "now_ms": now_ms}
    found = await connection.execute_rows("end_open_runs", _fences(runs), values, bytes_max=bytes_max)
    if found != len(runs):
        raise Conflict(f"ended {found} of {len(runs)} runs")
    await _forget(connection, runs, bytes_max)


async def _forget(connection: Connection, runs: Sequence[OpenRun], bytes_max: int) -> None:
    """Runs that are no longer open have no row in deferred, nor do they keep others from running."""
    keys = sorted(run[:3] for run in runs)
    await connection.execute_rows("delete_deferred", keys, bytes_max=bytes_max)
    await connection.execute_rows("delete_active", keys, bytes_max=bytes_max)


async def _enter(change: Change, times: Sequence[PlannedTime]) -> None:
    """Plan runs that wait in deferred, with the version that is in force so far; what is there is left alone, unless it
    was withdrawn."""
    if not times:
        return
    job, definition = change.was, change.definition
    keys = sorted((job.partition_id, time.scheduled_at_ms, job.job_id) for time in times)
    bounds = {"from_at": keys[0][1], "to_at": keys[-1][1]}
    there = await change.connection.fetch_rows("lock_runs_of_keys", keys, bounds, bytes_max=change.bytes_max)
    withdrawn = {row[1] for row in there if row[3] == RunState.WITHDRAWN}
    taken = {row[1] for row in there} - withdrawn
    wanted = sorted(time for time in times if time.scheduled_at_ms not in taken)
    await _insert_waiting(change, [time for time in wanted if time.scheduled_at_ms not in withdrawn])
    reopened = [
        (job.partition_id, time.scheduled_at_ms, job.job_id, change.planned_version, definition.priority, time.trigger)
        for time in wanted
        if time.scheduled_at_ms in withdrawn
    ]
    if reopened:
        await change.connection.execute_rows("reopen_waiting_runs", reopened, bounds, bytes_max=change.bytes_max)
    deferred = [
        (
            job.partition_id,
            time.scheduled_at_ms,
            job.job_id,
            max(change.now_ms, time.scheduled_at_ms),
            _DEFERRED[time.trigger],
        )
        for time in wanted
    ]
    if deferred:
        await change.connection.execute_rows("insert_deferred", deferred, bytes_max=change.bytes_max)


async def _insert_waiting(change: Change, times: Sequence[PlannedTime]) -> None:
    job = change.was
    rows = [
        (job.partition_id, time.scheduled_at_ms, job.job_id, job.tenant_id, change.planned_version, RunState.WAITING,
         change.definition.priority, time.trigger, 0, None, None)
        for time in times
    ]  # fmt: skip
    if rows:
        await change.connection.execute_rows("insert_runs", rows, bytes_max=change.bytes_max)


async def _skip(change: Change, skips: Sequence[Skip]) -> None:
    job = change.was
    ranges = [part for skip in skips for part in await _around_runs(change, skip)]
    rows = sorted(
        (
            job.partition_id,
            job.job_id,
            skip.from_at_ms,
            skip.to_at_ms,
            skip.skipped,
            skip.reason,
            change.planned_version,
            change.now_ms,
        )
        for skip in ranges
    )
    if rows:
        await change.connection.execute_rows("insert_skips", rows, bytes_max=change.bytes_max)


async def _around_runs(change: Change, skip: Skip) -> list[Skip]:
    """The range without the times that have a run: a pause takes back a run that is late, and lets a later one stand
    that has begun. After the last change there are none."""
    until_ms = min(skip.to_at_ms, change.was.updated_at_ms + START_MARGIN_MS)
    bounds = {"from_at": skip.from_at_ms, "to_at": until_ms}
    rows = (await change.connection.execute("standing_times_of_job", change.key | bounds)).rows
    if not rows:
        return [skip]
    edges = [skip.from_at_ms - 1, *(row[0] for row in rows), skip.to_at_ms + 1]
    schedule = change.definition.schedule
    parts = [skipped_range(schedule, after_ms, before_ms - 1, skip.reason) for after_ms, before_ms in pairwise(edges)]
    return [part for part in parts if part]


async def _free_time(change: Change) -> int:
    """The next millisecond that no run of the job has and that no schedule can have."""
    bounds = {"from_at": change.now_ms, "to_at": change.now_ms + 60_000}
    answer = await change.connection.execute("run_times_of_job", change.key | bounds)
    taken = {row[0] for row in answer.rows}
    at_ms = change.now_ms
    while at_ms in taken or at_ms % 1000 == 0:
        at_ms += 1
    return at_ms


async def _replace_labels(change: Change, definition: Definition) -> None:
    if definition.labels == change.definition.labels:
        return
    await _delete_labels(change)
    rows = sorted(label_rows(change.job, definition))
    if rows:
        await change.connection.execute_rows("insert_labels", rows, bytes_max=change.bytes_max)


async def _delete_labels(change: Change) -> None:
    keys = sorted(row[:4] for row in label_rows(change.job, change.definition))
    if keys:
        await change.connection.execute_rows("delete_labels", keys, bytes_max=change.bytes_max)


async def _write(change: Change, event: VersionEvent) -> Changed:
    """The job's row, its new version and the signals: the end of every change."""
    change.become(version=change.was.version + 1, updated_at_ms=change.now_ms)
    job = change.job
    await change.connection.execute(
        "update_job",
        {
            "partition_id": job.partition_id,
            "job_id": job.job_id,
            "alive": None if job.state == JobState.DELETED else 1,
            "state": job.state,
            "version": job.version,
            "priority": change.definition.priority,
            "overlap": change.definition.overlap,
            "next_run_at": job.next_run_at_ms,
            "resume_at": job.resume_at_ms,
            "last_run_at": job.last_run_at_ms,
            "updated_at": job.updated_at_ms,
            "note": job.note,
        },
    )
    await change.connection.execute_rows("insert_versions", [version_row(job, event)], bytes_max=change.bytes_max)
    signalled = await _insert_signals(
        change.connection, SignalKind.WITHDRAWN, change.told, change.now_ms, change.bytes_max
    )
    return Changed(job, job.next_run_at_ms, signalled)


def _edit_event(change: Change, definition: Definition) -> VersionEvent:
    if change.was.definition == change.job.definition and change.was.state != change.job.state:
        return VersionEvent.PAUSED if change.job.state == JobState.PAUSED else VersionEvent.RESUMED
    return VersionEvent.EDITED


async def _insert_signals(
    connection: Connection, kind: SignalKind, runs: Iterable[OpenRun], now_ms: int, bytes_max: int
) -> Signalled:
    rows = [
        (run.worker_id, kind, run.partition_id, run.scheduled_at_ms, run.job_id, run.attempt, now_ms) for run in runs
    ]
    if not rows:
        return NOBODY
    await connection.execute_rows("insert_signals", rows, bytes_max=bytes_max)
    first_id = int((await connection.execute("last_insert_id")).rows[0][0])
    return Signalled(first_id, first_id + len(rows) - 1)


def _fences(runs: Iterable[OpenRun]) -> list[tuple[int, int, int, int]]:
    return sorted((run.partition_id, run.scheduled_at_ms, run.job_id, run.attempt) for run in runs)


def _bounds(runs: Iterable[OpenRun]) -> dict[str, int]:
    """Constant bounds of scheduled_at, so that only the days in question are touched."""
    times = [run.scheduled_at_ms for run in runs]
    return {"from_at": min(times), "to_at": max(times)}


_DEFERRED = {Trigger.SCHEDULE: Reason.SCHEDULED, Trigger.CATCH_UP: Reason.CATCH_UP, Trigger.MANUAL: Reason.MANUAL}
