"""Planning a due job, against enumeration: every time is planned or skipped, once, and nothing is invented."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import Cron, MissedRuns, Reason, RunAt, Trigger
from engine.rules.planning import MissedPolicy, plan_job
from engine.rules.schedule import next_time

NOW_MS = 1_796_083_200_000
MINUTE_MS, DAY_MS, YEAR_MS = 60_000, 86_400_000, 366 * 86_400_000
MISSED_AFTER_MS = 300_000


def planned(
    schedule: RunAt | Cron,
    from_ms: int,
    missed_runs: MissedRuns = MissedRuns.LATEST,
    max_catch_up: int = 100,
    floor_at_ms: int = 0,
):
    return plan_job(
        schedule,
        MissedPolicy(missed_runs, max_catch_up),
        next_run_at_ms=from_ms,
        now_ms=NOW_MS,
        horizon_at_ms=NOW_MS + 30_000,
        missed_after_ms=MISSED_AFTER_MS,
        floor_at_ms=floor_at_ms,
    )


def test_p8_a_time_reached_five_minutes_late_is_late_and_one_a_millisecond_later_is_missed() -> None:
    late = planned(RunAt(NOW_MS - MISSED_AFTER_MS), NOW_MS - MISSED_AFTER_MS)
    assert [time.trigger for time in late.times] == [Trigger.SCHEDULE]
    missed = planned(RunAt(NOW_MS - MISSED_AFTER_MS - 1), NOW_MS - MISSED_AFTER_MS - 1)
    assert [time.trigger for time in missed.times] == [Trigger.CATCH_UP]


def test_p8_all_catches_up_the_newest_and_records_the_rest_as_one_range() -> None:
    plan = planned(Cron("* * * * *"), NOW_MS - DAY_MS, MissedRuns.ALL, max_catch_up=10)
    caught_up = [time for time in plan.times if time.trigger == Trigger.CATCH_UP]
    assert len(caught_up) == 10
    (skip,) = plan.skips
    assert skip.reason == Reason.MAX_CATCH_UP
    assert skip.to_at_ms + MINUTE_MS == caught_up[0].scheduled_at_ms


def test_times_below_the_floor_are_one_range_too_old_for_a_run() -> None:
    plan = planned(Cron("0 * * * *"), NOW_MS - 10 * DAY_MS, MissedRuns.ALL, 1_000, floor_at_ms=NOW_MS - DAY_MS)
    assert (plan.skips[0].reason, plan.skips[0].skipped) == (Reason.TOO_OLD, 9 * 24)
    assert min(time.scheduled_at_ms for time in plan.times) == NOW_MS - DAY_MS


def test_p8_a_years_pause_of_a_job_of_every_second_costs_no_more_than_a_minutes() -> None:
    def cost_s(pause_ms: int) -> float:
        began = time.process_time()
        for _ in range(50):
            planned(Cron("* * * * * *"), NOW_MS - pause_ms)
        return time.process_time() - began

    cost_s(YEAR_MS)
    assert min(cost_s(YEAR_MS) for _ in range(5)) < 2 * min(cost_s(10 * MINUTE_MS) for _ in range(5))


expressions = st.sampled_from(["* * * * *", "*/7 * * * *", "0 9 * * *", "30 2 * * *", "0 0 29 2 *", "*/10 * * * * *"])
zones = st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe"])


@settings(deadline=None)
@given(
    expressions,
    zones,
    st.integers(0, 5 * DAY_MS),
    st.sampled_from(list(MissedRuns)),
    st.integers(1, 20),
    st.integers(0, 3 * DAY_MS),
)
def test_p1_every_time_from_the_next_one_to_the_new_next_one_is_planned_or_skipped_once(
    expression: str, zone: str, back_ms: int, missed_runs: MissedRuns, max_catch_up: int, floor_back_ms: int
) -> None:
    schedule = Cron(expression, zone)
    from_ms = next_time(schedule, NOW_MS - back_ms)
    assert from_ms is not None
    plan = planned(schedule, from_ms, missed_runs, max_catch_up, NOW_MS - floor_back_ms)
    covered = [time.scheduled_at_ms for time in plan.times]
    ranges = 0
    at_ms: int | None = from_ms
    while at_ms is not None and at_ms != plan.next_run_at_ms:
        inside = sum(skip.from_at_ms <= at_ms <= skip.to_at_ms for skip in plan.skips)
        ranges += inside
        assert inside + covered.count(at_ms) == 1
        at_ms = next_time(schedule, at_ms)
    assert at_ms == plan.next_run_at_ms
    assert sum(skip.skipped for skip in plan.skips) == ranges
    assert len(covered) == len(set(covered))
