"""Scheduled times that a change plans itself, and those it leaves on record as skipped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.model import UNREADABLE, Definition, JobState, NoticeKind, Reason, RunKey, RunState, Trigger
from engine.rules.changes import START_MARGIN_MS, OpenRun
from engine.rules.lanes import lane_of
from engine.rules.notices import RANGES_TOLD, About, notice_row
from engine.rules.planning import MissedPolicy, PlannedTime, Skip, skipped_range
from engine.rules.schedule import is_evaluable
from engine.store.changes.change import Change
from engine.store.rollups import note_recounts


def missed_policy(definition: Definition) -> MissedPolicy:
    """What decides about the missed times of a job with this definition."""
    return MissedPolicy(definition.missed_runs, definition.max_catch_up)


async def enter(change: Change, times: Sequence[PlannedTime]) -> None:
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
    lane = lane_of(job.partition_id, job.tenant_id, definition)
    deferred = [
        (
            job.partition_id,
            time.scheduled_at_ms,
            job.job_id,
            max(change.now_ms, time.scheduled_at_ms),
            _DEFERRED[time.trigger],
            definition.priority,
            lane,
            job.tenant_id,
        )
        for time in wanted
    ]
    if deferred:
        await change.connection.execute_rows("insert_into_lanes", deferred, bytes_max=change.bytes_max)
        below_mark = [row[:2] for row in deferred if row[1] < change.mark_at_ms]
        await note_recounts(change.connection, below_mark, change.now_ms, change.bytes_max)


async def _insert_waiting(change: Change, times: Sequence[PlannedTime]) -> None:
    job = change.was
    rows = [
        (job.partition_id, time.scheduled_at_ms, job.job_id, job.tenant_id, change.planned_version, RunState.WAITING,
         change.definition.priority, time.trigger, 0, None, None)
        for time in times
    ]  # fmt: skip
    if rows:
        await change.connection.execute_rows("insert_runs", rows, bytes_max=change.bytes_max)


_DEFERRED = {Trigger.SCHEDULE: Reason.SCHEDULED, Trigger.CATCH_UP: Reason.CATCH_UP, Trigger.MANUAL: Reason.MANUAL}


async def skip_times(change: Change, skips: Sequence[Skip]) -> None:
    """Put ranges of times on record as skipped."""
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
    await _tell(change, [skip for skip in ranges if skip.reason in RANGES_TOLD])


async def _tell(change: Change, skips: Sequence[Skip]) -> None:
    """Whether anybody is told is known where notices are sent."""
    job = change.was
    keys = [RunKey(job.partition_id, skip.from_at_ms, job.job_id) for skip in skips]
    abouts = [
        About(NoticeKind.SKIPPED, key, job.tenant_id, change.planned_version, skip.skipped)
        for key, skip in zip(keys, skips, strict=True)
    ]
    if abouts:
        rows = sorted(notice_row(about, change.now_ms) for about in abouts)
        await change.connection.execute_rows("insert_notices", rows, bytes_max=change.bytes_max)


async def _around_runs(change: Change, skip: Skip) -> list[Skip]:
    """The range without the times that have a run: a pause takes back a run that is late, and lets a later one stand
    that has begun. After the last change there are none, nor where nothing could be planned."""
    if skip.reason == Reason.INVALID:
        return [skip]
    until_ms = min(skip.to_at_ms, change.was.updated_at_ms + START_MARGIN_MS)
    bounds = {"from_at": skip.from_at_ms, "to_at": until_ms}
    rows = (await change.connection.execute("standing_times_of_job", change.key | bounds)).rows
    if not rows:
        return [skip]
    edges = [skip.from_at_ms - 1, *(row[0] for row in rows), skip.to_at_ms + 1]
    schedule = change.definition.schedule
    parts = [skipped_range(schedule, after_ms, before_ms - 1, skip.reason) for after_ms, before_ms in pairwise(edges)]
    return [part for part in parts if part]


def passed_in_pause(change: Change) -> list[Skip]:
    """Times inside a pause whose schedule is being replaced: nobody can catch them up."""
    return _unplanned_until_now(change, change.job.resume_at_ms, Reason.PAUSED)


def can_be_planned(change: Change) -> bool:
    """Whether the job's schedule so far can be evaluated."""
    return change.definition is not UNREADABLE and is_evaluable(change.definition.schedule)


def never_planned(change: Change) -> list[Skip]:
    """Times up to now that no planner has reached: they end with the job."""
    if change.job.state == JobState.PAUSED:
        return passed_in_pause(change)
    return _unplanned_until_now(change, change.job.next_run_at_ms or change.job.resume_at_ms, Reason.DELETED)


def passed_while_invalid(change: Change) -> list[Skip]:
    """Times of a job that was set aside, or was about to be."""
    return _unplanned_until_now(change, change.job.next_run_at_ms or change.job.resume_at_ms, Reason.INVALID)


def _unplanned_until_now(change: Change, from_ms: int | None, reason: Reason) -> list[Skip]:
    if from_ms is None or from_ms > change.now_ms:
        return []
    if not can_be_planned(change):
        # Nobody knows how many they were: the range counts as one.
        return [Skip(from_ms, change.now_ms, 1, Reason.INVALID)]
    skip = skipped_range(change.definition.schedule, from_ms - 1, change.now_ms, reason)
    return [skip] if skip else []


def plan_again_from(change: Change, withdrawn: Sequence[OpenRun], cursor: str) -> None:
    """Move the job's ``cursor`` (next_run_at_ms or resume_at_ms) back to the earliest run withdrawn, never forward."""
    if not withdrawn:
        return
    earliest_ms = min(run.scheduled_at_ms for run in withdrawn)
    was_ms = getattr(change.job, cursor)
    last_ms = change.job.last_run_at_ms
    change.become(
        **{cursor: earliest_ms if was_ms is None else min(was_ms, earliest_ms)},
        last_run_at_ms=None if last_ms is None else min(last_ms, earliest_ms - 1),
    )
