"""Times as text: RFC 3339 in, UTC out."""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

EXAMPLE = "2026-03-29T01:30:00Z"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))", flags=re.ASCII
)


def parse_time(text: str) -> int:
    """An RFC 3339 time as milliseconds since the epoch; what is finer is cut off. Raises ValueError, saying why."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"is not an RFC 3339 time such as {EXAMPLE}")
    date, clock, fraction, sign, hours, minutes = found.groups()
    try:
        naive = datetime.fromisoformat(f"{date} {clock}").replace(tzinfo=UTC)
        east = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
        utc = naive + east if sign == "-" else naive - east
    except (ValueError, OverflowError):
        raise ValueError(f"is no time of the calendar from year 0001 to 9999; {EXAMPLE} is one") from None
    return (utc - _EPOCH) // _MILLISECOND + int((fraction or "0").ljust(3, "0")[:3])


# Half of an answer's times are those of the one before: created and changed now, next at the same hour.
@lru_cache(maxsize=16_384)
def format_time(time_ms: int) -> str:
    """`2026-03-29T01:30:00Z`, with milliseconds only where they are not zero."""
    return _iso(_EPOCH + timedelta(milliseconds=time_ms)).replace("+00:00", "Z")


def format_local(time_ms: int, offset_s: int) -> str:
    """The same instant by a clock that is `offset_s` east of UTC: `2026-03-29T03:30:00+02:00`."""
    try:
        return _iso((_EPOCH + timedelta(milliseconds=time_ms)).astimezone(timezone(timedelta(seconds=offset_s))))
    except OverflowError:  # the first or last hours of the calendar, where the wall clock shows another year already
        return format_time(time_ms)


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds")
