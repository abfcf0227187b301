"""Which runs a due job gets: the times up to the horizon, what was missed before, and where planning goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.model import MissedRuns, Reason, Trigger

# One job yields at most this many runs in one step of the planner; the rest follows in the next step.
TIMES_PER_STEP_MAX = 400


class Times(Protocol):
    """The scheduled times of one version of a job, in milliseconds; every answer is found by jumping."""

    def next_time(self, after_ms: int) -> int | None:
        """The first time later than ``after_ms``."""

    def latest_time(self, after_ms: int, until_ms: int) -> int | None:
        """The last time in (after_ms, until_ms]."""

    def count_times(self, after_ms: int, until_ms: int) -> int:
        """How many times lie in (after_ms, until_ms]."""


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
    times: Times,
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
        caught_up, skips = settle_missed(times, policy, next_run_at_ms, missed_until_ms, floor_at_ms)
        planned = [PlannedTime(at_ms, Trigger.CATCH_UP) for at_ms in caught_up]
        time_ms = times.next_time(missed_until_ms)
    while time_ms is not None and time_ms <= horizon_at_ms and len(planned) < TIMES_PER_STEP_MAX:
        planned.append(PlannedTime(time_ms, Trigger.SCHEDULE))
        time_ms = times.next_time(time_ms)
    return JobPlan(planned, skips, time_ms)


def settle_missed(
    times: Times, policy: MissedPolicy, from_ms: int, until_ms: int, floor_at_ms: int
) -> tuple[Sequence[int], list[Skip]]:
    """Of the missed times in [from_ms, until_ms]: those to catch up, oldest first, and the ranges skipped.

    Whatever lies below the floor is too old for a run; it becomes one skipped range.
    """
    skips = []
    if from_ms < floor_at_ms:
        too_old = skipped_range(times, from_ms - 1, min(until_ms, floor_at_ms - 1), Reason.TOO_OLD)
        skips += [too_old] if too_old else []
        from_ms = floor_at_ms
    wanted = wanted_times(times, policy, from_ms - 1, until_ms)
    reason = Reason.MAX_CATCH_UP if policy.missed_runs == MissedRuns.ALL else Reason.MISSED
    passed = skipped_range(times, from_ms - 1, wanted[0] - 1 if wanted else until_ms, reason)
    return wanted, skips + ([passed] if passed else [])


def wanted_times(times: Times, policy: MissedPolicy, after_ms: int, until_ms: int) -> list[int]:
    """The newest missed times that the policy asks for, oldest first."""
    count_max = {MissedRuns.SKIP: 0, MissedRuns.LATEST: 1, MissedRuns.ALL: policy.max_catch_up}[policy.missed_runs]
    wanted: list[int] = []
    while len(wanted) < count_max:
        time_ms = times.latest_time(after_ms, wanted[-1] - 1 if wanted else until_ms)
        if time_ms is None:
            break
        wanted.append(time_ms)
    return wanted[::-1]


def skipped_range(times: Times, after_ms: int, until_ms: int, reason: Reason) -> Skip | None:
    """All times in (after_ms, until_ms] as one skipped range; None if there are none."""
    first_ms = times.next_time(after_ms)
    last_ms = times.latest_time(after_ms, until_ms)
    if first_ms is None or last_ms is None:
        return None
    return Skip(first_ms, last_ms, times.count_times(after_ms, until_ms), reason)
