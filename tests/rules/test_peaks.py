"""Large seconds are planned in time to be ready, not earlier than needed, and not just before they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.rules.peaks import JOBS_PER_S, QUIET_MS, READY_BEFORE_MS, is_quiet, planning_horizon_ms

NOW_MS = 1_796_083_200_000
HORIZON_MS = 30_000


@given(st.integers(HORIZON_MS + 1, 600_000), st.integers(2_000, 10_000_000))
def test_a_large_second_begins_to_be_planned_when_its_jobs_need_it(ahead_ms: int, jobs: int) -> None:
    second_ms = NOW_MS + ahead_ms
    needed_ms = READY_BEFORE_MS + jobs * 1000 // JOBS_PER_S
    expected = second_ms if ahead_ms <= needed_ms else NOW_MS + HORIZON_MS
    assert planning_horizon_ms({second_ms: jobs}, NOW_MS, HORIZON_MS) == expected


def test_without_large_seconds_the_horizon_is_the_usual_one() -> None:
    assert planning_horizon_ms({}, NOW_MS, HORIZON_MS) == NOW_MS + HORIZON_MS


def test_it_is_quiet_just_before_a_large_second_and_not_after_it() -> None:
    for ahead_ms, quiet in ((QUIET_MS + 1, False), (QUIET_MS, True), (0, True), (-1, False)):
        assert is_quiet({NOW_MS + ahead_ms: 5_000}, NOW_MS) == quiet
