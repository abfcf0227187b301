"""Schedules: between their ends, forwards, backwards and counted, and what a clock change does to them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CallerError
from engine.model import Cron, RunAt
from engine.rules.schedule import (
    Effect,
    Mark,
    clock_changes,
    compiled,
    count_times,
    faults_of,
    latest_time,
    latest_times,
    mark_of,
    next_n_times,
    next_time,
    next_times,
    preview,
)
from engine.rules.timestamps import format_time, parse_time

MINUTE_MS = 60_000
YEAR_MS = 365 * 86_400_000
NOON = parse_time("2026-03-28T12:00:00Z")
SCHEDULES = [
    RunAt(NOON + 5 * MINUTE_MS),
    Cron("*/7 * * * *"),
    Cron("30 2 * * *", "Europe/Paris"),
    Cron("*/20 * * * * *", "Australia/Lord_Howe"),
    Cron("0 * * * *", "UTC", start_at_ms=NOON + 1, end_at_ms=NOON + 600 * MINUTE_MS),
]


def texts(times: list[int]) -> list[str]:
    return [format_time(time_ms) for time_ms in times]


def test_the_next_time_is_later_than_the_instant() -> None:
    hourly = Cron("0 * * * *")
    assert next_time(hourly, NOON) == NOON + 60 * MINUTE_MS
    assert next_time(hourly, NOON - 1) == NOON
    assert next_time(RunAt(NOON), NOON - 1) == NOON
    assert next_time(RunAt(NOON), NOON) is None


def test_both_ends_of_a_schedule_belong_to_it() -> None:
    some = Cron("* * * * *", start_at_ms=NOON, end_at_ms=NOON + 2 * MINUTE_MS)
    assert next_n_times(some, NOON - YEAR_MS, 10) == [NOON, NOON + MINUTE_MS, NOON + 2 * MINUTE_MS]
    assert next_time(some, NOON + 2 * MINUTE_MS) is None
    assert count_times(some, NOON - YEAR_MS, NOON + YEAR_MS) == 3
    assert latest_time(some, NOON - YEAR_MS, NOON + YEAR_MS) == NOON + 2 * MINUTE_MS
    assert latest_time(some, NOON - YEAR_MS, NOON - 1) is None


def test_ends_between_two_seconds_leave_out_what_lies_outside() -> None:
    some = Cron("* * * * * *", start_at_ms=NOON + 1, end_at_ms=NOON + 2_999)
    assert next_n_times(some, NOON - YEAR_MS, 10) == [NOON + 1_000, NOON + 2_000]
    assert latest_times(some, NOON - YEAR_MS, NOON + YEAR_MS, 10) == [NOON + 1_000, NOON + 2_000]


def test_a_batch_mixes_all_kinds_in_order() -> None:
    assert next_times(SCHEDULES, [NOON] * len(SCHEDULES)) == [next_time(schedule, NOON) for schedule in SCHEDULES]
    assert next_times([], []) == []


def test_a_batch_with_a_schedule_that_is_none_names_its_faults() -> None:
    with pytest.raises(CallerError) as refused:
        next_times([Cron("99 * * * *", "Europe/Pari")], [NOON])
    assert [fault.pointer for fault in refused.value.faults] == ["/schedule/cron", "/schedule/time_zone"]


@given(
    st.sampled_from(SCHEDULES), st.integers(0, 40 * 60 * MINUTE_MS), st.integers(0, 240 * MINUTE_MS), st.integers(1, 9)
)
@settings(deadline=None)
def test_forwards_backwards_and_counted_agree(schedule: RunAt | Cron, shift: int, span: int, count: int) -> None:
    after_ms, until_ms = NOON + shift, NOON + shift + span
    times = [time_ms for time_ms in next_n_times(schedule, after_ms, 800) if time_ms <= until_ms]
    assert count_times(schedule, after_ms, until_ms) == len(times)
    assert latest_times(schedule, after_ms, until_ms, count) == times[-count:]
    assert latest_time(schedule, after_ms, until_ms) == (times[-1] if times else None)


def test_an_empty_span_has_no_times() -> None:
    for schedule in SCHEDULES:
        assert count_times(schedule, NOON, NOON) == 0
        assert latest_times(schedule, NOON, NOON - MINUTE_MS, 3) == []


@pytest.mark.parametrize("value", [None, 5, True, ["* * * * *"], {"cron": "* * * * *"}, b"* * * * *"])
def test_what_is_no_text_is_a_fault_of_its_field(value: object) -> None:
    faults = faults_of(value, value)
    assert [(fault.pointer, fault.detail) for fault in faults] == [
        ("/schedule/cron", "must be a string"),
        ("/schedule/time_zone", "must be a string"),
    ]
    assert faults_of(faults[0].example, faults[1].example) == []


def test_a_fault_names_field_reason_and_an_example_that_works() -> None:
    (fault,) = faults_of("0 22-2 * * *", "UTC", cron_pointer="expr")
    assert (fault.pointer, fault.detail) == ("expr", "hour: 22-2 runs backwards; write 22-23,0-2")
    assert faults_of(fault.example, "UTC") == []


def test_equal_schedules_are_compiled_once() -> None:
    assert compiled(Cron("1 2 3 * *", "Europe/Paris")) == compiled(Cron("1 2 3 * *", "Europe/Paris"))


def test_a_job_in_the_gap_is_marked_where_it_fires() -> None:
    times = preview(Cron("30 2 * * *", "Europe/Paris"), NOON, 2)
    assert [(format_time(t.time_ms), t.local, t.mark) for t in times] == [
        ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00", Mark.MOVED),
        ("2026-03-30T00:30:00Z", "2026-03-30T02:30:00+02:00", None),
    ]


def test_an_interval_job_is_marked_in_both_passes() -> None:
    times = preview(Cron("30 */2 * * *", "Europe/Paris"), parse_time("2026-10-25T00:00:00Z"), 3)
    assert [(format_time(t.time_ms), t.mark) for t in times] == [
        ("2026-10-25T00:30:00Z", Mark.FIRST_OF_TWO),
        ("2026-10-25T01:30:00Z", Mark.SECOND_OF_TWO),
        ("2026-10-25T03:30:00Z", None),
    ]


def test_a_wall_clock_job_is_marked_in_the_one_pass_it_fires_in() -> None:
    times = preview(Cron("30 2 * * *", "Europe/Paris"), parse_time("2026-10-25T00:00:00Z"), 2)
    assert [t.mark for t in times] == [Mark.FIRST_TIME_ONLY, None]


def test_a_single_time_meets_no_clock_change() -> None:
    once = RunAt(NOON)
    assert mark_of(once, NOON) is None
    assert clock_changes(once, 0, 2 * NOON) == []
    assert [t.local for t in preview(once, 0, 5)] == ["2026-03-28T12:00:00+00:00"]


@pytest.mark.parametrize(
    ("expression", "zone", "year", "expected"),
    [
        ("30 2 * * *", "Europe/Paris", 2026, [("03-29T01", Effect.MOVED, 1), ("10-25T01", Effect.FIRST_TIME_ONLY, 1)]),
        ("*/10 2 * * *", "Europe/Paris", 2026, [("03-29T01", Effect.SKIPPED, 6), ("10-25T01", Effect.BOTH_TIMES, 6)]),
        ("0 12 * * *", "Europe/Paris", 2026, []),
        ("30 2 * * 1", "Europe/Paris", 2026, []),
        ("0 12 * * *", "Pacific/Apia", 2011, [("12-30T10", Effect.SKIPPED, 1)]),
        ("0 12 * * *", "UTC", 2026, []),
    ],
)
def test_a_schedule_tells_the_clock_changes_it_meets(
    expression: str, zone: str, year: int, expected: list[tuple[str, Effect, int]]
) -> None:
    begin, end = parse_time(f"{year}-01-01T00:00:00Z"), parse_time(f"{year + 1}-01-01T00:00:00Z")
    met = clock_changes(Cron(expression, zone), begin, end)
    assert [(format_time(c.at_ms)[5:13], c.effect, c.wall_times) for c in met] == expected


def test_clock_changes_outside_of_a_schedule_s_ends_are_not_told() -> None:
    winter = Cron("30 2 * * *", "Europe/Paris", start_at_ms=NOON + 86_400_000, end_at_ms=NOON + 100 * 86_400_000)
    assert clock_changes(winter, NOON - YEAR_MS, NOON + YEAR_MS) == []


@pytest.mark.parametrize("expression", ["* * * * * *", "0 0 29 2 *"])
def test_a_century_is_counted_and_searched_in_jumps(expression: str) -> None:
    """36,525 days of 86,400 times each would take minutes one by one."""
    schedule = Cron(expression, "Europe/Paris")
    end = NOON + 100 * YEAR_MS
    assert count_times(schedule, NOON, end) == (end - NOON) // 1000 or expression != "* * * * * *"
    assert count_times(schedule, NOON, latest_time(schedule, NOON, end)) == count_times(schedule, NOON, end)


def test_times_come_as_texts_in_utc() -> None:
    assert texts(next_n_times(Cron("0 9 * * MON", "Asia/Tokyo"), NOON, 2)) == [
        "2026-03-30T00:00:00Z",
        "2026-04-06T00:00:00Z",
    ]
