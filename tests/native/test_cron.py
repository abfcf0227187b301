"""Compiled cron beside the cases people argued about, a slow reference, and the ends of the calendar."""

from __future__ import annotations

import json
import random
from array import array
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from engine import zones
from engine._native import cron as native
from tests.support import slow_cron
from tests.support.cron_text import BUSY_FIVE, BUSY_SIX, EXPRESSIONS, broken
from tests.support.slow_cron import SlowCron

DAY_S = 86_400
HOUR_S = 3600
CENTURY_S = 36_524 * DAY_S
CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "cron.jsonl").read_text().splitlines()]

# tzdata 2026f tells that Cuba keeps its summer time through the winter of 2026; the cases are older.
OLDER_THAN_2026F = {"America/Havana": 2026}

UTC_ZONE = zones.zone("UTC")
INSTANTS = st.integers(0, 4 * CENTURY_S)


def seconds(text: str) -> int:
    return (datetime.fromisoformat(text) - slow_cron.EPOCH) // timedelta(seconds=1)


def text_of(instant: int) -> str:
    return (slow_cron.EPOCH + timedelta(seconds=instant)).isoformat().replace("+00:00", "Z")


def next_texts(expression: str, zone: str, after: str, count: int) -> list[str]:
    found = native.next_n(native.compile_expression(expression), zones.zone(zone), seconds(after), count)
    return [text_of(instant) for instant in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{str(case['expr'])[:40]}-{case['tz']}-{case['why'][:40]}")
def test_case(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises((native.ExpressionError, TypeError)):
            native.compile_expression(case["expr"])
        return
    expected = case["expect"]
    if case["tz"] in OLDER_THAN_2026F and zones.TZDATA_VERSION >= "2026f":
        expected = [time for time in expected if int(time[:4]) < OLDER_THAN_2026F[case["tz"]]]
    assert next_texts(case["expr"], case["tz"], case["after"], len(expected)) == expected


@given(EXPRESSIONS | broken() | st.text(max_size=300))
@example("@wee\u212aly")  # the Kelvin sign, which lower() turns into k
@example("0 0 1 1 \x7f")
@example("0 0 * * SUN-SUN")
@example("0 0 * * 0-SUN")
@example("0 0 * * 7-SUN")
@example("0 0 * * SUN-7")
@example("0 0 * * 5-0")
@example("0 0 * * FRI-SUN")
@example("0 0 * * 7-7/2")
@example("0 0 5,* * *")
@example("0 0 *,*/2 * *")
@example("0 0 */31 * FRI#5")
@example("0 0 L-30 2,4 *")
@example("0 0 L-28 2 *")
@example("0 0 05W * 05")
@example("\t0\t0 \t* * *\t")
@settings(max_examples=400, deadline=None)
def test_the_same_texts_are_expressions_as_by_the_reference(text: str) -> None:
    try:
        slow = SlowCron(text)
    except ValueError:
        with pytest.raises(native.ExpressionError) as refused:
            native.compile_expression(text)
        assert refused.value.detail
        native.compile_expression(refused.value.example)
    else:
        assert native.compile_expression(text).interval == slow.is_interval


@given(EXPRESSIONS, INSTANTS)
@example("0 0 1W * *", seconds("2024-05-31T00:00:00Z"))
@example("0 0 31W * *", seconds("2023-12-01T00:00:00Z"))
@settings(max_examples=200, deadline=None)
def test_the_dates_are_those_of_the_reference(text: str, after: int) -> None:
    slow = slow_or_none(text)
    assume(slow is not None)
    first_day = after // DAY_S
    days = [day for day in range(first_day, first_day + 120) if slow.matches_date(slow_cron.shown(day * DAY_S).date())]
    found = native.compile_expression(text)
    fast_days = [
        day for day in range(first_day, first_day + 120) if native.count_walls(found, day * DAY_S, (day + 1) * DAY_S)
    ]
    assert fast_days == days


def slow_or_none(text: str) -> SlowCron | None:
    try:
        return SlowCron(text)
    except ValueError:
        return None


@given(BUSY_FIVE | BUSY_SIX, INSTANTS)
@settings(max_examples=60, deadline=None)
def test_times_in_utc_are_those_of_the_reference(text: str, after: int) -> None:
    slow = slow_or_none(text)
    assume(slow is not None)
    agree(text, slow, "UTC", after, after + (2 * HOUR_S if slow.has_seconds else 2 * DAY_S))


@given(BUSY_FIVE, st.data())
@settings(max_examples=150, deadline=None)
def test_times_around_a_clock_change_are_those_of_the_reference(text: str, data: st.DataObject) -> None:
    slow = slow_or_none(text)
    assume(slow is not None)
    zone = data.draw(st.sampled_from(changing_zones()))
    at, before, then = data.draw(st.sampled_from(changes_of(zone)))
    odd = before % 60 or then % 60 or at % 60
    span = abs(then - before) + (HOUR_S if odd else 6 * HOUR_S)
    after = at + data.draw(st.integers(-span, span))
    assume(after < seconds("9990-01-01T00:00:00Z"))
    agree(text, slow, zone, after, after + (min(span, 2 * HOUR_S) if odd else span))


@given(BUSY_SIX, st.data())
@settings(max_examples=40, deadline=None)
def test_seconds_around_a_clock_change_are_those_of_the_reference(text: str, data: st.DataObject) -> None:
    slow = slow_or_none(text)
    assume(slow is not None)
    zone = data.draw(st.sampled_from(changing_zones()))
    at, _, _ = data.draw(st.sampled_from(changes_of(zone)))
    after = at + data.draw(st.integers(-HOUR_S, HOUR_S))
    agree(text, slow, zone, after, after + HOUR_S)


@pytest.mark.parametrize("zone", sorted(zones.zone_names()))
def test_every_zone_is_that_of_the_reference_around_its_changes(zone: str) -> None:
    choose = random.Random(zone)
    for text in ("0,30 0-23 * * *", "*/20 * * * *"):
        for at, before, then in choose.sample(changes_of(zone), min(1, len(changes_of(zone)))):
            whole_minutes = not (before % 60 or then % 60 or at % 60)
            span = 3 * HOUR_S if whole_minutes else HOUR_S // 2
            agree(text, SlowCron(text), zone, at - span, at + span)


@cache
def changing_zones() -> list[str]:
    return [zone for zone in sorted(zones.zone_names()) if changes_of(zone)]


@cache
def changes_of(zone: str) -> list[tuple[int, int, int]]:
    return zones.zone(zone).changes(seconds("1800-01-01T00:00:00Z"), seconds("2100-01-01T00:00:00Z"), 1000)


def agree(text: str, slow: SlowCron, zone_name: str, after: int, until: int) -> None:
    """Next, last and number of times in (after, until] are those that watching the clock gives."""
    expected = slow_cron.times(slow, zone_name, after, until)
    cron, zone = native.compile_expression(text), zones.zone(zone_name)
    where = f"{text!r} in {zone_name} after {text_of(after)}"
    found = native.next_n(cron, zone, after, len(expected) + 1)
    assert [time for time in found if time <= until] == expected, where
    assert native.count_times(cron, zone, after, until) == len(expected), where
    assert native.last_n(cron, zone, after, until, len(expected) + 1) == expected, where
    assert native.last_n(cron, zone, after, until, 1) == expected[-1:], where


@given(
    EXPRESSIONS, INSTANTS, st.integers(0, 10 * 366 * DAY_S), st.sampled_from(["UTC", "Europe/Paris", "Pacific/Apia"])
)
@settings(max_examples=200, deadline=None)
def test_next_last_and_number_of_times_tell_the_same_story(text: str, after: int, span: int, zone_name: str) -> None:
    assume(slow_or_none(text) is not None)
    cron, zone = native.compile_expression(text), zones.zone(zone_name)
    until = after + span
    last = native.last_n(cron, zone, after, until, 1)
    count = native.count_times(cron, zone, after, until)
    first = native.next_n(cron, zone, after, 1)
    assert (count > 0) == bool(last) == bool(first and first[0] <= until)
    if count:
        assert native.next_n(cron, zone, last[0] - 1, 1) == last
        assert native.count_times(cron, zone, after, first[0]) == 1
        assert native.count_times(cron, zone, last[0] - 1, until) == 1
        middle = (after + until) // 2
        halves = native.count_times(cron, zone, after, middle) + native.count_times(cron, zone, middle, until)
        assert halves == count


@given(EXPRESSIONS, INSTANTS, st.sampled_from(["America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]))
@settings(max_examples=100, deadline=None)
def test_all_comes_again_after_400_years(text: str, after: int, zone_name: str) -> None:
    assume(slow_or_none(text) is not None)
    cron, zone = native.compile_expression(text), zones.zone(zone_name)
    late = after + seconds("2100-01-01T00:00:00Z")
    once, again = native.next_n(cron, zone, late, 3), native.next_n(cron, zone, late + native.CYCLE_S, 3)
    assert [time + native.CYCLE_S for time in once] == again
    once, again = (native.last_n(cron, zone, native.FIRST_S, late + shift, 3) for shift in (0, native.CYCLE_S))
    assert [time + native.CYCLE_S for time in once] == again


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("0 0 1 1 *", "UTC", "0001-01-01T00:00:00Z", ["0002-01-01T00:00:00Z"]),
        ("* * * * * *", "UTC", "0001-01-01T00:00:00Z", ["0001-01-01T00:00:01Z"]),
        ("0 0 29 2 *", "UTC", "0001-01-01T00:00:00Z", ["0004-02-29T00:00:00Z"]),
        ("0 12 * * *", "America/New_York", "0001-01-01T00:00:00Z", ["0001-01-01T16:56:02Z"]),
        ("0 0 29 2 *", "UTC", "1696-03-01T00:00:00Z", ["1704-02-29T00:00:00Z"]),
        ("59 23 31 12 *", "UTC", "9999-12-31T23:58:59Z", ["9999-12-31T23:59:00Z"]),
        ("59 23 31 12 *", "UTC", "9999-12-31T23:59:00Z", []),
        ("* * * * * *", "UTC", "9999-12-31T23:59:58Z", ["9999-12-31T23:59:59Z"]),
        ("0 0 29 2 *", "UTC", "9996-02-29T00:00:00Z", []),
        ("0 0 * 2 MON#5", "UTC", "9990-01-01T00:00:00Z", []),
        ("0 0 29 2 *", "Europe/Paris", "9996-02-29T00:00:00Z", []),
        ("0 3 * * *", "America/New_York", "9999-12-31T08:00:00Z", []),
        ("0 1 * * *", "America/New_York", "9999-12-31T05:00:00Z", ["9999-12-31T06:00:00Z"]),
        ("0 9 * * *", "Pacific/Kiritimati", "9999-12-31T18:00:00Z", ["9999-12-31T19:00:00Z"]),
    ],
)
def test_the_calendar_ends_quietly(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert next_texts(expression, zone, after, 1) == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["UTC", "Europe/Paris"]))
@example(2**63 - 1, -(2**63), "Europe/Paris")
@example(2**62, 0, "Europe/Paris")
@example(2**62, 0, "UTC")
@settings(deadline=None)
def test_any_instant_has_an_answer(after: int, until: int, zone_name: str) -> None:
    cron, zone = native.compile_expression("30 2 29 2 *"), zones.zone(zone_name)
    for time in native.next_n(cron, zone, after, 2):
        assert max(after, native.FIRST_S - 1) < time <= native.LAST_S
    last = native.last_n(cron, zone, after, until, 3)
    assert last == sorted(time for time in last if after < time <= until)
    assert native.count_times(cron, zone, after, until) >= len(last)
    assert native.count_walls(cron, after, until) >= 0
    assert native.clock_change(cron, zone, after) in range(4)
    assert zone.offset_at(after) in range(-DAY_S, DAY_S)
    assert len(zone.changes(after, until, 5)) <= 5


def test_a_batch_is_answered_in_its_order() -> None:
    crons = [native.compile_expression(text) for text in ("0 9 * * *", "30 2 * * *", "59 23 31 12 *")]
    some_zones = [zones.zone(name) for name in ("UTC", "Europe/Paris", "UTC")]
    after = array("q", [seconds(t) for t in ("2026-03-28T12:00:00Z", "2026-03-28T12:00:00Z", "9999-12-31T23:59:59Z")])
    found = array("q", [0, 0, 0])
    native.next_times(crons, some_zones, after, found)
    assert list(found) == [seconds("2026-03-29T09:00:00Z"), seconds("2026-03-29T01:00:00Z"), native.NEVER]


def test_an_expression_without_a_text_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="compile_expression"):
        native.Expression()


def test_a_batch_of_unequal_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        native.next_times([native.compile_expression("@daily")], [UTC_ZONE], array("q", [0, 0]), array("q", [0]))


def test_a_batch_of_other_things_is_refused() -> None:
    with pytest.raises(TypeError):
        native.next_times(["@daily"], [UTC_ZONE], array("q", [0]), array("q", [0]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("starts", "offsets", "repeats"),
    [
        ([], [], False),
        ([0, 5], [0], False),
        ([0, 5, 5], [0, 1, 2], False),
        ([0, 5], [0, 3600], True),
        ([0, 2**62], [0, 1], False),
    ],
    ids=["no stretch", "unequal", "not growing", "no cycle", "too far"],
)
def test_a_zone_of_broken_arrays_is_refused(starts: list[int], offsets: list[int], repeats: bool) -> None:
    with pytest.raises(ValueError, match="zone"):
        native.Zone(array("q", starts), array("i", offsets), repeats)


@pytest.mark.parametrize(
    ("expression", "zone", "time", "kind"),
    [
        ("30 2 * * *", "America/New_York", "2025-03-09T07:00:00Z", native.MOVED),
        ("0 2,3 * * *", "America/New_York", "2025-03-09T07:00:00Z", native.MOVED),
        ("0 3 * * *", "America/New_York", "2025-03-09T07:00:00Z", native.PLAIN),
        ("*/30 * * * *", "America/New_York", "2025-03-09T07:00:00Z", native.PLAIN),
        ("30 1 * * *", "America/New_York", "2025-11-02T05:30:00Z", native.FIRST_PASS),
        ("0 2 * * *", "America/New_York", "2025-11-02T07:00:00Z", native.PLAIN),
        ("*/30 * * * *", "America/New_York", "2025-11-02T05:30:00Z", native.FIRST_PASS),
        ("*/30 * * * *", "America/New_York", "2025-11-02T06:30:00Z", native.SECOND_PASS),
        ("*/30 * * * *", "America/New_York", "2025-11-02T07:00:00Z", native.PLAIN),
        ("0 12 * * *", "America/New_York", "2025-11-02T17:00:00Z", native.PLAIN),
        ("0 12 * * *", "Pacific/Apia", "2011-12-30T22:00:00Z", native.PLAIN),
        ("0 0 * * *", "Pacific/Apia", "2011-12-30T10:00:00Z", native.PLAIN),
        ("0 12 * * *", "America/Juneau", "1867-10-18T08:57:41Z", native.FIRST_PASS),
    ],
)
def test_a_time_tells_how_it_meets_a_clock_change(expression: str, zone: str, time: str, kind: int) -> None:
    assert native.clock_change(native.compile_expression(expression), zones.zone(zone), seconds(time)) == kind


def test_a_gap_that_is_soon_taken_back_hides_nothing() -> None:
    """No zone ever did this; the search must not rest on it. The clock shows 00:00-00:16, 01:16-01:33, then from 00:33
    on, so that 00:50 comes in the last stretch only."""
    zone = native.Zone(array("q", [0, 1000, 2000]), array("i", [0, 3600, 0]), False)
    interval = native.compile_expression("*/50 0 1 1 *")
    assert native.next_n(interval, zone, 500, 1) == [3000]
    assert native.last_n(interval, zone, -1, 3000, 5) == [0, 3000]
    assert native.count_times(interval, zone, -1, 3000) == 2
    wall_clock = native.compile_expression("0,50 0 1 1 *")
    assert native.next_n(wall_clock, zone, 500, 1) == [1000]
    assert native.last_n(wall_clock, zone, -1, 4000, 5) == [0, 1000]
    assert native.count_times(wall_clock, zone, -1, 4000) == 2


def test_what_never_fires_is_refused_at_once() -> None:
    never = "0 0 30,31 2 *", "0 0 */31 * FRI#5", "0 0 L-30 2,4,6,9,11 *", "0 0 31W 2 *", "* * * 31 4,6,9,11 *"
    begun = datetime.now(UTC)
    for text in never * 1000:
        with pytest.raises(native.ExpressionError, match="never"):
            native.compile_expression(text)
    assert datetime.now(UTC) - begun < timedelta(seconds=5 * len(never))  # 1 ms each would be 5 s for 5,000


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("99 * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("60 0 0 * * *", "second"),
        ("0 0 32 * *", "day-of-month"),
        ("0 0 1 13 *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("0 0 31 2 *", "day-of-month"),
        ("* * *", "expression"),
        ("@every 5m", "expression"),
        ("TZ=Europe/Paris 0 9 * * *", "expression"),
        ("CRON_TZ=UTC 0 9 * * *", "expression"),
        (" " * 257, "expression"),
    ],
)
def test_a_refusal_names_the_field_and_an_example_that_works(expression: str, field: str) -> None:
    with pytest.raises(native.ExpressionError) as refused:
        native.compile_expression(expression)
    assert refused.value.field == field
    native.compile_expression(refused.value.example)


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        ("0 22-2 * * *", "22-23,0-2"),
        ("0 0 * NOV-FEB *", "11-12,1-2"),
        ("0 0 * 12-1 *", "12,1"),
        ("0 0 * * 6-2", "6,0-2"),
        ("0 0 * * 7-4", "0-4"),
        ("0 0 L,25-5 * *", "25-31,1-5"),
    ],
)
def test_a_range_that_runs_backwards_is_refused_with_what_to_write(expression: str, instead: str) -> None:
    with pytest.raises(native.ExpressionError, match=f"write {instead}$") as refused:
        native.compile_expression(expression)
    assert instead in refused.value.example
    native.compile_expression(refused.value.example)


def test_256_characters_are_an_expression_and_one_more_is_not() -> None:
    longest = "0 0 * * *" + " " * (native.TEXT_CHARS_MAX - 9)
    native.compile_expression(longest)
    with pytest.raises(native.ExpressionError, match="257 characters"):
        native.compile_expression(longest + " ")


def test_a_year_of_every_second_is_counted_without_looking_at_each() -> None:
    cron, zone = native.compile_expression("* * * * * *"), zones.zone("Europe/Paris")
    begin, end = seconds("2025-01-01T00:00:00Z"), seconds("2026-01-01T00:00:00Z")
    assert native.count_times(cron, zone, begin, end) == end - begin
    assert native.count_times(cron, zone, native.FIRST_S, native.LAST_S) == native.LAST_S - native.FIRST_S
