"""Zones: every one as the standard library reads it, exact names, and nothing of the machine's own."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import tzdata

from engine import zones
from engine._native.cron import CYCLE_S, LAST_S
from tests.support import slow_cron

DAY_S = 86_400
FIRST_CHANGE_S = -5_000_000_000  # 1811; no zone changes earlier


@pytest.mark.parametrize("name", sorted(zones.zone_names()))
def test_offsets_are_those_of_the_standard_library_up_to_the_year_9999(name: str) -> None:
    zone, theirs = zones.zone(name), slow_cron.zone_of(name)
    changes = zone.changes(FIRST_CHANGE_S, 4 * 10**9, 1000)
    choose = random.Random(name)
    instants = [at + shift for at, _, _ in changes for shift in (-1, 0)]
    instants += [choose.randrange(FIRST_CHANGE_S, LAST_S - DAY_S) for _ in range(100)]
    for at in instants:
        assert zone.offset_at(at) == slow_cron.wall_at(theirs, at) - at, slow_cron.EPOCH + timedelta(seconds=at)


def test_changes_go_on_beyond_the_arrays() -> None:
    zone = zones.zone("Europe/Paris")
    near = zone.changes(4 * 10**9, 4 * 10**9 + 10 * 366 * DAY_S, 1000)
    far = zone.changes(4 * 10**9 + 5 * CYCLE_S, 4 * 10**9 + 10 * 366 * DAY_S + 5 * CYCLE_S, 1000)
    assert len(near) == 20
    assert far == [(at + 5 * CYCLE_S, before, then) for at, before, then in near]


@pytest.mark.parametrize(
    "name",
    ["utc", "europe/paris", "Europe/Paris ", "", "/etc/localtime", "../zones", "Europe", "Europe/", "posixrules"],
)
def test_only_exact_names_are_zones(name: str) -> None:
    with pytest.raises(zones.UnknownZoneError) as unknown:
        zones.zone(name)
    zones.zone(unknown.value.example)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("utc", "UTC"),
        ("Europe/Pari", "Europe/Paris"),
        ("america/new york", "America/New_York"),
        ("Eurpoe/Berlin", "Europe/Berlin"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(zones.UnknownZoneError, match=f"nearest is {nearest}$"):
        zones.zone(name)


def test_a_long_name_gets_an_answer_without_a_search() -> None:
    with pytest.raises(zones.UnknownZoneError, match="is not the name"):
        zones.zone("Europe/Paris" * 100_000)


def test_the_version_is_that_of_the_package() -> None:
    assert zones.TZDATA_VERSION == tzdata.IANA_VERSION


def test_the_machine_s_own_zones_are_never_read(tmp_path: Path) -> None:
    lie = tmp_path / "Europe" / "Paris"
    lie.parent.mkdir()
    lie.write_bytes((Path(tzdata.__file__).parent / "zoneinfo" / "Asia" / "Tokyo").read_bytes())
    ask = "from engine.zones import zone; print(zone('Europe/Paris').offset_at(0))"
    told = subprocess.run(
        [sys.executable, "-c", ask],
        env={"PYTHONTZPATH": str(tmp_path), "TZDIR": str(tmp_path), "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "3600\n"


@pytest.mark.parametrize(
    ("footer", "expected"),
    [
        ("UTC0", []),
        ("<+0330>-3:30", []),
        ("EST5EDT,M3.2.0,M11.1.0", [("1970-03-08T07:00:00", -4), ("1970-11-01T06:00:00", -5)]),
        ("EET-2EEST,M3.4.4/50,M10.4.4/50", [("1970-03-28T00:00:00", 3), ("1970-10-23T23:00:00", 2)]),
        ("IST-1GMT0,M10.5.0,M3.5.0/1", [("1970-03-29T01:00:00", 1), ("1970-10-25T01:00:00", 0)]),
        ("XXX3YYY,J60/-1,J365", [("1970-03-01T02:00:00", -2), ("1970-12-31T04:00:00", -3)]),
        ("XXX3YYY,59/0:30,364/0:00:01", [("1970-03-01T03:30:00", -2), ("1970-12-31T02:00:01", -3)]),
    ],
)
def test_a_footer_says_what_is_to_come(footer: str, expected: list[tuple[str, int]]) -> None:
    changes = zones._changes_to_come(footer, after=0)
    told = [((slow_cron.EPOCH + timedelta(seconds=at)).isoformat()[:19], offset // 3600) for at, offset in changes[:2]]
    assert told == expected
    if changes:
        assert (changes[-1][0] - CYCLE_S, changes[-1][1]) in changes


def test_leap_days_move_the_days_of_a_footer_or_do_not() -> None:
    assert zones._day_s("J60", 1972) == zones._day_s("60", 1972)  # both 1 March of a leap year
    assert zones._day_s("J60", 1973) == zones._day_s("59", 1973)


def test_a_footer_of_another_form_is_told() -> None:
    with pytest.raises(ValueError, match="footer"):
        zones._changes_to_come("EST5EDT,M3.2.0", after=0)
