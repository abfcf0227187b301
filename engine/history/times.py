"""What Cassandra keeps a run by: the month of its time, and when it was written."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from engine.rows import RunRow

DAY_MS = 86_400_000
ATTEMPTS_TOLD_APART = 999


def month_of(at_ms: int) -> int:
    """2026-12 is 202612, in UTC."""
    return _month_of_day(at_ms // DAY_MS)


@lru_cache(maxsize=1_000)
def _month_of_day(day: int) -> int:
    at = datetime.fromtimestamp(day * DAY_MS // 1000, UTC)
    return at.year * 100 + at.month


def months(from_ms: int, to_ms: int) -> list[int]:
    """Those that the range touches, the newest first."""
    month, first, found = month_of(to_ms), month_of(from_ms), []
    while month >= first:
        found.append(month)
        month = month - 1 if month % 100 > 1 else month - 100 + 11
    return found


def write_time_us(run: RunRow) -> int:
    """Of two writes of a run the one with the later end wins; with the same end, that of the later attempt."""
    ended_ms = run.scheduled_at_ms if run.finished_at_ms is None else run.finished_at_ms
    return ended_ms * 1000 + min(run.attempt, ATTEMPTS_TOLD_APART)
