"""Which runs a due job gets: the times up to the horizon, what was missed before, and where planning goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.model import Cron, MissedRuns, Reason, RunAt, Trigger
from engine.rules.schedule import count_times, latest_time, latest_times, next_time

# One job yields at most this many runs in one step of the planner; the rest follows in the next step.
TIMES_PER_STEP_MAX = 400


Schedule = RunAt | Cron


class MissedPolicy(NamedTuple):
    """What a job wants done with the times that nobody could plan in time."""

    missed_runs: MissedRuns
    max_catch_up: int


class Skip(NamedTuple):
    """A range of scheduled times that get no run; both ends are scheduled times and belong to it."""

    from_at_ms: int
    to_at_ms: int
    skipped: int
    reason: Reason


class PlannedTime(NamedTuple):
    scheduled_at_ms: int
    trigger: Trigger


class JobPlan(NamedTuple):
    """Runs to make, ranges to record as skipped, and the first time not yet planned (None: there is none)."""

    times: list[PlannedTime]
    skips: list[Skip]
    next_run_at_ms: int | None


def plan_job(
    schedule: Schedule,
    policy: MissedPolicy,
    *,
    next_run_at_ms: int,
    now_ms: int,
    horizon_at_ms: int,
    missed_after_ms: int,
    floor_at_ms: int,
) -> JobPlan:
    """Plan one due job from its own next time on, never from now: a time reached late is late, not lost."""
    planned: list[PlannedTime] = []
    skips: list[Skip] = []
    time_ms: int | None = next_run_at_ms
    missed_until_ms = now_ms - missed_after_ms - 1
    if next_run_at_ms <= missed_until_ms:
        caught_up, skips = settle_missed(schedule, policy, next_run_at_ms, missed_until_ms, floor_at_ms)
        planned = [PlannedTime(at_ms, Trigger.CATCH_UP) for at_ms in caught_up]
        time_ms = next_time(schedule, missed_until_ms)
    while time_ms is not None and time_ms <= horizon_at_ms and len(planned) < TIMES_PER_STEP_MAX:
        planned.append(PlannedTime(time_ms, Trigger.SCHEDULE))
        time_ms = next_time(schedule, time_ms)
    return JobPlan(planned, skips, time_ms)


def settle_missed(
    schedule: Schedule, policy: MissedPolicy, from_ms: int, until_ms: int, floor_at_ms: int
) -> tuple[Sequence[int], list[Skip]]:
    """Of the missed times in [from_ms, until_ms]: those to catch up, oldest first, and the ranges skipped.

    Whatever lies below the floor is too old for a run; it becomes one skipped range.
    """
    skips = []
    if from_ms < floor_at_ms:
        too_old = skipped_range(schedule, from_ms - 1, min(until_ms, floor_at_ms - 1), Reason.TOO_OLD)
        skips += [too_old] if too_old else []
        from_ms = floor_at_ms
    wanted = wanted_times(schedule, policy, from_ms - 1, until_ms)
    reason = Reason.MAX_CATCH_UP if policy.missed_runs == MissedRuns.ALL else Reason.MISSED
    passed = skipped_range(schedule, from_ms - 1, wanted[0] - 1 if wanted else until_ms, reason)
    return wanted, skips + ([passed] if passed else [])


def wanted_times(schedule: Schedule, policy: MissedPolicy, after_ms: int, until_ms: int) -> list[int]:
    """The newest missed times that the policy asks for, oldest first."""
    count_max = {MissedRuns.SKIP: 0, MissedRuns.LATEST: 1, MissedRuns.ALL: policy.max_catch_up}[policy.missed_runs]
    return latest_times(schedule, after_ms, until_ms, count_max)


def skipped_range(schedule: Schedule, after_ms: int, until_ms: int, reason: Reason) -> Skip | None:
    """All times in (after_ms, until_ms] as one skipped range; None if there are none."""
    first_ms = next_time(schedule, after_ms)
    last_ms = latest_time(schedule, after_ms, until_ms)
    if first_ms is None or last_ms is None:
        return None
    return Skip(first_ms, last_ms, count_times(schedule, after_ms, until_ms), reason)
