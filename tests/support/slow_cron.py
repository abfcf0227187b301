"""The slow reference for compiled cron: the rules as they are said, in plain sets, moment by moment.

It shares nothing with the compiled code: expressions are read with other means, offsets come from the standard
library's zoneinfo (reading the tzdata package), and time passes second by second, or minute by minute where nothing can
happen in between.
"""

import re
import zoneinfo
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import NamedTuple

zoneinfo.reset_tzpath(())  # the tzdata package only

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_MOVE_S = 3 * 3600
LONGEST_REPEAT_S = 26 * 3600
MINUTE = 60

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


SECOND = Field("second", 0, 59)
MINUTE_FIELD = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day-of-month", 1, 31)
MONTH = Field("month", 1, 12, MONTHS)
WEEKDAY = Field("day-of-week", 0, 6, WEEKDAYS)


class SlowCron:
    """An expression, read with regular expressions. ValueError for what is none."""

    def __init__(self, text: str) -> None:
        if len(text) > 256 or not text.isascii():
            raise ValueError("length or alphabet")
        text = text.strip(" \t").upper()
        fields = re.split("[ \t]+", MACROS.get(text.lower(), text))
        if len(fields) not in (5, 6):
            raise ValueError("number of fields")
        self.has_seconds = len(fields) == 6
        if not self.has_seconds:
            fields = ["0", *fields]
        second, minute, hour, self.day_text, month, self.weekday_text = fields
        self.seconds = plain_values(second, SECOND)
        self.minutes = plain_values(minute, MINUTE_FIELD)
        self.hours = plain_values(hour, HOUR)
        self.months = plain_values(month, MONTH)
        self.day_members = [day_member(member) for member in members_of(self.day_text, DAY)]
        self.weekday_members = [weekday_member(member) for member in members_of(self.weekday_text, WEEKDAY)]
        self.is_interval = any(field[0] == "*" for field in (second, minute, hour))
        if not any(self.matches_date(day) for day in days_of_400_years()):
            raise ValueError("never")

    def matches_date(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date = any(member(day) for member in self.day_members)
        by_weekday = any(member(day) for member in self.weekday_members)
        if self.day_text[0] in "*?" or self.weekday_text[0] in "*?":
            return by_date and by_weekday
        return by_date or by_weekday

    def matches(self, wall: datetime) -> bool:
        return (
            wall.second in self.seconds
            and wall.minute in self.minutes
            and wall.hour in self.hours
            and self.matches_date(wall.date())
        )


def members_of(text: str, field: Field) -> list[str]:
    members = text.split(",")
    if any("*" in member for member in members[1:]):
        raise ValueError("a star that is not first")
    return ["*"] if text == "?" and field in (DAY, WEEKDAY) else members


def plain_values(text: str, field: Field) -> set[int]:
    return set().union(*(plain_member(member, field) for member in members_of(text, field)))


def plain_member(member: str, field: Field) -> set[int]:
    found = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d\d?))?", member, re.ASCII)
    if found is None:
        raise ValueError(f"{field.name}: {member!r}")
    star, low, high, step = found.groups()
    if step is not None and not 1 <= int(step) <= field.high - field.low + 1:
        raise ValueError(f"{field.name}: step")
    if star:
        first, last = field.low, field.high
    elif high is not None:
        first, last = value(low, field), value(high, field)
        if field is WEEKDAY and high == "SUN" and first != 0:
            last = 7
    elif step is not None:
        first, last = value(low, field), field.high
        first = 0 if field is WEEKDAY and first == 7 else first
    else:
        first = last = value(low, field)
    if first > last:
        raise ValueError(f"{field.name}: reversed")
    values = set(range(first, last + 1, int(step or 1)))
    return {number % 7 for number in values} if field is WEEKDAY else values


def value(text: str, field: Field) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    if not re.fullmatch(r"\d\d?", text, re.ASCII) or not field.low <= int(text) <= field.high + (field is WEEKDAY):
        raise ValueError(f"{field.name}: {text!r}")
    return int(text)


def day_member(member: str):
    """What a member of the day-of-month field asks of a date."""
    if member == "LW":
        return lambda day: day.day == max(d for d in range(1, length(day) + 1) if is_workday(day, d))
    if found := re.fullmatch(r"L(?:-(\d\d?))?", member, re.ASCII):
        before = int(found[1] or 0)
        if before > 30:
            raise ValueError("L-n")
        return lambda day: day.day == length(day) - before
    if found := re.fullmatch(r"(\d\d?)W", member, re.ASCII):
        wanted = value(found[1], DAY)
        return lambda day: wanted <= length(day) and day.day == nearest_workday(day, wanted)
    values = plain_member(member, DAY)
    return lambda day: day.day in values


def weekday_member(member: str):
    """What a member of the day-of-week field asks of a date."""
    if found := re.fullmatch(r"(\w+)#(\d\d?)", member, re.ASCII):
        weekday, nth = value(found[1], WEEKDAY) % 7, int(found[2])
        if not 1 <= nth <= 5:
            raise ValueError("#n")
        return lambda day: day.isoweekday() % 7 == weekday and (day.day + 6) // 7 == nth
    if found := re.fullmatch(r"(\w+)L", member, re.ASCII):
        weekday = value(found[1], WEEKDAY) % 7
        return lambda day: day.isoweekday() % 7 == weekday and day.day + 7 > length(day)
    values = plain_member(member, WEEKDAY)
    return lambda day: day.isoweekday() % 7 in values


def length(day: date) -> int:
    return monthrange(day.year, day.month)[1]


def is_workday(month: date, day: int) -> bool:
    return month.replace(day=day).isoweekday() <= 5


def nearest_workday(month: date, wanted: int) -> int:
    """The nearest of the month's Mondays to Fridays; no weekday is as near as another one."""
    workdays = [day for day in range(1, length(month) + 1) if is_workday(month, day)]
    return min(workdays, key=lambda day: abs(day - wanted))


@cache
def days_of_400_years() -> list[date]:
    first = date(2000, 1, 1)
    return [first + timedelta(days=day) for day in range(146_097)]


@cache
def zone_of(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo.no_cache(name)


def wall_at(zone: zoneinfo.ZoneInfo, at: int) -> int:
    """Seconds the wall clock shows, counted like those since the epoch."""
    shown = (EPOCH + timedelta(seconds=at)).astimezone(zone)
    return at + int(shown.utcoffset().total_seconds())


def shown(wall: int) -> datetime:
    """What the wall clock shows, in a datetime that calls it UTC."""
    return EPOCH + timedelta(seconds=wall)


def times(cron: SlowCron, zone_name: str, after: int, until: int) -> list[int]:
    """Every time in (after, until], by watching the clock."""
    zone = zone_of(zone_name)
    step = step_for(cron, zone, after, until)
    begin = (after // step + 1) * step
    furthest = max(wall_at(zone, at) for at in watched(zone, begin - LONGEST_REPEAT_S, begin - 1)) // step * step
    found = []
    for at in range(begin, until + 1, step):
        wall = wall_at(zone, at)
        if fires(cron, wall, furthest, step):
            found.append(at)
        furthest = max(furthest, wall)
    return found


def fires(cron: SlowCron, wall: int, furthest: int, step: int) -> bool:
    """Whether a moment fires that shows `wall`, when the clock has shown all up to `furthest` before."""
    if cron.is_interval:
        return cron.matches(shown(wall))
    if wall <= furthest:
        return False  # the second pass
    if wall - furthest - step > LONGEST_MOVE_S:
        return cron.matches(shown(wall))  # a date that never was
    return any(cron.matches(shown(missing)) for missing in range(furthest + step, wall + 1, step))


def step_for(cron: SlowCron, zone: zoneinfo.ZoneInfo, after: int, until: int) -> int:
    """A minute, if the clock moves by whole minutes and nothing is asked of seconds."""
    if cron.has_seconds:
        return 1
    odd = any((wall_at(zone, at) - at) % MINUTE for at in range(after - LONGEST_REPEAT_S, until + MINUTE, MINUTE))
    return 1 if odd else MINUTE


def watched(zone: zoneinfo.ZoneInfo, begin: int, end: int) -> Iterator[int]:
    """Moments from begin to end, minute by minute; second by second where the offset changes in between."""
    for at in range(begin, end, MINUTE):
        following = min(at + MINUTE, end)
        yield at
        if wall_at(zone, following) - following != wall_at(zone, at) - at:
            yield from range(at, following)
    yield end
