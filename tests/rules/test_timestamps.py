"""RFC 3339 in, UTC out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rules.timestamps import EXAMPLE, format_local, format_time, parse_time

FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T20:30:00.5-03:30", 500),
        ("1970-01-01T00:00:00.123456789Z", 123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01T00:00:00Z", FIRST_MS),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
        ("2024-02-29T00:00:00-00:00", 1_709_164_800_000),
    ],
)
def test_what_is_read(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "20260101T000000Z", "2026-01-01T00:00Z"),
        *(
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+0100",
            "2026-01-01T00:00:00+24:00",
            " 2026-01-01T00:00:00Z",
        ),
        *("2026-01-01T00:00:00Z\n", "\u0662026-01-01T00:00:00Z", "2026-01-01T00:00:00.1234567890Z"),
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2025-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z"),
        *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"),
    ],
)
def test_no_time_of_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="calendar"):
        parse_time(text)


@given(st.integers(FIRST_MS, LAST_MS))
def test_what_is_written_is_read_again(time_ms: int) -> None:
    assert parse_time(format_time(time_ms)) == time_ms
    assert parse_time(format_local(time_ms, 5 * 3600 + 1800)) == time_ms


def test_milliseconds_are_written_where_there_are_any() -> None:
    assert format_time(1_500) == "1970-01-01T00:00:01.500Z"
    assert format_time(2_000) == "1970-01-01T00:00:02Z"
    assert format_time(FIRST_MS) == "0001-01-01T00:00:00Z"


def test_local_time_carries_its_offset() -> None:
    assert format_local(0, -3600) == "1969-12-31T23:00:00-01:00"
    assert format_local(0, -17_762) == "1969-12-31T19:03:58-04:56:02"


def test_where_the_local_calendar_has_ended_utc_is_written() -> None:
    assert format_local(LAST_MS - 999, 3600) == "9999-12-31T23:59:59Z"


def test_the_example_is_one() -> None:
    assert parse_time(EXAMPLE) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp() * 1000
