"""What a clock change will do to the times of a job, told before it happens."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from engine.errors import CallerError
from engine.model import Cron, RunAt
from engine.rules.schedule import ClockChange, Effect, clock_changes
from engine.rules.timestamps import format_local, format_time

DAY_MS = 86_400_000

_SAYS = {
    Effect.MOVED: "{count} of its times are missing from the clock; they run once, together, at {after}",
    Effect.SKIPPED: "{count} of its times are missing from the clock; nothing runs in their place",
    Effect.FIRST_TIME_ONLY: "{count} of its times come twice; each runs the first time only",
    Effect.BOTH_TIMES: "{count} of its times come twice; each runs both times",
}


def show_clock_changes(schedule: RunAt | Cron, after_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """The clock changes that a schedule meets in the period, each with what will happen."""
    try:
        return [_show(change) for change in clock_changes(schedule, after_ms, until_ms)]
    except CallerError:  # a zone that is gone
        return []


@lru_cache(maxsize=64)
def months_after(now_ms: int, months: int, days: int = 0) -> int:
    """The same day and time so many months later, the last of a shorter month, and days on top."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    years, month = divmod(now.month - 1 + months, 12)
    for day in (now.day, 30, 29, 28):
        try:
            later = now.replace(year=now.year + years, month=month + 1, day=min(day, now.day))
        except ValueError:
            continue
        return int(later.timestamp() * 1000) + days * DAY_MS
    raise ValueError(f"no day in month {month + 1}")


def _show(change: ClockChange) -> dict[str, Any]:
    after = format_local(change.at_ms, change.offset_after_s)
    return {
        "at": format_time(change.at_ms),
        "local_before": format_local(change.at_ms, change.offset_before_s),
        "local_after": after,
        "effect": change.effect,
        "times": change.wall_times,
        "detail": _SAYS[change.effect].format(count=change.wall_times, after=after),
    }
