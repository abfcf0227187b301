"""Time zones of the `tzdata` package, compiled to transition arrays; the machine's own zone files are never read."""

from __future__ import annotations

import re
import struct
from array import array
from calendar import monthrange
from datetime import date
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files

import tzdata

from engine._native.cron import CYCLE_S, Zone

TZDATA_VERSION: str = tzdata.IANA_VERSION
"""The IANA release, such as `2026f`: one for the whole fleet, recorded with every version of a job."""

NAME_CHARS_MAX = 64  # the longest tzdata name has 32
UNKNOWN_NAMES_KEPT = 1024  # a hint costs milliseconds, and the same wrong name comes again and again
DAY_S = 86_400
YEAR_S = CYCLE_S // 400
BEGINNING = -(2**63)


class UnknownZoneError(LookupError):
    """Not the exact name of a tzdata zone. `detail` says so with the nearest name, `example` is a name that works."""

    def __init__(self, detail: str, example: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.example = example


def zone(name: str) -> Zone:
    """The compiled zone of an exact tzdata name. Raises UnknownZoneError."""
    if name not in zone_names():  # also what keeps a name such as `../x` from becoming a path
        raise UnknownZoneError(*_hint(name[: NAME_CHARS_MAX + 1]))
    return _load(name)


@cache
def zone_names() -> frozenset[str]:
    """Every name tzdata knows, links included."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split())


@lru_cache(maxsize=UNKNOWN_NAMES_KEPT)
def _hint(name: str) -> tuple[str, str]:
    nearest = _nearest(name)
    if nearest is None:
        return "is not the name of a tzdata time zone", "Europe/Paris"
    return f"is not the name of a tzdata time zone; the nearest is {nearest}", nearest


def _nearest(name: str) -> str | None:
    if len(name) > NAME_CHARS_MAX:
        return None
    folded = {known.casefold(): known for known in sorted(zone_names())}
    close = get_close_matches(name.casefold(), folded, n=1)
    return folded[close[0]] if close else None


@cache
def _load(name: str) -> Zone:
    starts, offsets, footer = _read_tzif(files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes())
    for start, offset in _changes_to_come(footer, starts[-1]):
        starts.append(start)
        offsets.append(offset)
    kept_starts, kept_offsets = _without_idle(starts, offsets)
    return Zone(kept_starts, kept_offsets, repeats=kept_starts[-1] - CYCLE_S in kept_starts)


def _read_tzif(data: bytes) -> tuple[list[int], list[int], str]:
    """Starts (UTC seconds) and offsets (seconds east) of the stretches of a zone, and its footer (RFC 9636)."""
    times_at, time_count, type_count, footer_at = _block(data, _block(data, 0, 4)[3], 8)
    kinds_at = times_at + 8 * time_count
    times = struct.unpack_from(f">{time_count}q", data, times_at)
    kinds = struct.unpack_from(f">{time_count}B", data, kinds_at)
    types = [offset for offset, _, _ in struct.iter_unpack(">lBB", data[kinds_at + time_count :][: 6 * type_count])]
    return [BEGINNING, *times], [types[0], *(types[kind] for kind in kinds)], data[footer_at:].decode("ascii").strip()


def _block(data: bytes, at: int, time_bytes: int) -> tuple[int, int, int, int]:
    """A block's place of the times, count of times, count of types, and end."""
    ut_count, wall_count, leap_count, time_count, type_count, char_count = struct.unpack_from(">6l", data, at + 20)
    times_bytes = time_count * (time_bytes + 1) + leap_count * (time_bytes + 4)
    return at + 44, time_count, type_count, at + 44 + times_bytes + type_count * 6 + char_count + wall_count + ut_count


_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)"
_HOURS = r"[+-]?\d{1,3}(?::\d{2}){0,2}"
_RULE = rf"(J?\d+|M\d+\.\d\.\d)(?:/({_HOURS}))?"
_FOOTER = re.compile(rf"{_NAME}({_HOURS})(?:{_NAME}({_HOURS})?,{_RULE},{_RULE})?")


def _changes_to_come(footer: str, after: int) -> list[tuple[int, int]]:
    """What a footer such as `EST5EDT,M3.2.0,M11.1.0` (POSIX TZ) says of the time after an instant: each change's second
    and the offset from then on, for over 400 years. Dates and weekdays repeat after 400, so that is all there is."""
    found = _FOOTER.fullmatch(footer)
    if found is None:
        raise ValueError(f"no footer of a zone file: {footer!r}")
    standard, summer, begin, begin_time, end, end_time = found.groups()
    if begin is None:
        return []
    standard_offset = -_seconds(standard)
    summer_offset = -_seconds(summer) if summer else standard_offset + 3600
    first_year = 1970 + max(after, 0) // YEAR_S
    changes: list[tuple[int, int]] = []
    for year in range(first_year, first_year + 402):
        changes.append((_day_s(begin, year) + _seconds(begin_time or "2") - standard_offset, summer_offset))
        changes.append((_day_s(end, year) + _seconds(end_time or "2") - summer_offset, standard_offset))
    return sorted(change for change in changes if change[0] > after)


def _seconds(hours: str) -> int:
    """`2`, `-1:30` or `+26:00:01` as seconds."""
    parts = [int(part) for part in hours.lstrip("+-").split(":")]
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    return -total if hours.startswith("-") else total


def _day_s(rule: str, year: int) -> int:
    """Wall seconds of the midnight a rule names: `M3.2.0` is the second Sunday of March (week 5 the last), `J60` counts
    no leap days, `59` does, from 0."""
    if rule[0] == "M":
        month, week, weekday = (int(part) for part in rule[1:].split("."))
        first_weekday, length = monthrange(year, month)  # 0 is Monday
        day = 1 + (weekday - 1 - first_weekday) % 7 + 7 * (week - 1)
        of_year = date(year, month, day if day <= length else day - 7).toordinal()
    elif rule[0] == "J":
        of_year = date(2001, 1, 1).toordinal() + int(rule[1:]) - 1
        of_year = date.fromordinal(of_year).replace(year=year).toordinal()
    else:
        of_year = date(year, 1, 1).toordinal() + int(rule)
    return (of_year - date(1970, 1, 1).toordinal()) * DAY_S


def _without_idle(starts: list[int], offsets: list[int]) -> tuple[array[int], array[int]]:
    """Leaves out stretches of no length, and changes (of the name only) that move no clock."""
    kept_starts, kept_offsets = array("q"), array("i")
    ends = [*starts[1:], None]
    for start, end, offset in zip(starts, ends, offsets, strict=True):
        if start != end and (not kept_offsets or kept_offsets[-1] != offset):
            kept_starts.append(start)
            kept_offsets.append(offset)
    return kept_starts, kept_offsets
