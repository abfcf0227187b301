"""When a job is due: the rules of its schedule, pure and exact, for planner, API and command line.

A schedule is a `RunAt` or a `Cron`. Times are milliseconds since the epoch; those of a `Cron` are whole seconds. What
cron fields mean and what a clock change does to them is stated and computed in `engine._native.cron`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from engine import zones
from engine._native import cron as native
from engine.errors import CallerError, Fault
from engine.model import Cron, RunAt
from engine.rules.timestamps import format_local

EXPRESSIONS_KEPT = 65_536  # about 300 bytes each; compiling one again costs 1 µs
CHANGES_MAX = 1_000  # looked at in one call: some 500 years of a zone


class Mark(StrEnum):
    """How a time meets a clock change."""

    MOVED = "moved"  # its wall time does not exist; it fires at the first instant after the gap
    FIRST_TIME_ONLY = "first_time_only"  # its wall time comes twice; a wall-clock job fires the first time
    FIRST_OF_TWO = "first_of_two"  # its wall time comes twice; an interval job fires both times
    SECOND_OF_TWO = "second_of_two"


class Effect(StrEnum):
    """What a clock change does to the times of a schedule."""

    MOVED = "moved"  # missing times fire once, together, at the first instant after
    SKIPPED = "skipped"  # missing times fire nothing
    FIRST_TIME_ONLY = "first_time_only"
    BOTH_TIMES = "both_times"


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A clock change that a schedule meets: when, the offsets (seconds east) around it, and how many of the schedule's
    wall times are missing or come twice."""

    at_ms: int
    offset_before_s: int
    offset_after_s: int
    effect: Effect
    wall_times: int


@dataclass(frozen=True, slots=True)
class Preview:
    """One time to come, as its owner's clock shows it."""

    time_ms: int
    local: str
    mark: Mark | None


def faults_of(
    cron: object, time_zone: object, cron_pointer: str = "/schedule/cron", zone_pointer: str = "/schedule/time_zone"
) -> list[Fault]:
    """Everything wrong with an expression and zone that came from outside; empty if they can be compiled."""
    return [*cron_faults(cron, cron_pointer), *zone_faults(time_zone, zone_pointer)]


def cron_faults(cron: object, pointer: str) -> Iterator[Fault]:
    """What is wrong with an expression."""
    if not isinstance(cron, str):
        yield Fault(pointer, "must be a string", "0 9 * * MON-FRI")
        return
    try:
        _expression(cron)
    except native.ExpressionError as error:
        yield Fault(pointer, str(error), error.example)


def zone_faults(time_zone: object, pointer: str) -> Iterator[Fault]:
    """What is wrong with the name of a zone."""
    if not isinstance(time_zone, str):
        yield Fault(pointer, "must be a string", "Europe/Paris")
        return
    try:
        zones.zone(time_zone)
    except zones.UnknownZoneError as error:
        yield Fault(pointer, error.detail, error.example)


def is_evaluable(schedule: RunAt | Cron) -> bool:
    """False where its zone is gone with a change of tzdata."""
    return isinstance(schedule, RunAt) or not faults_of(schedule.cron, schedule.time_zone)


def compiled(schedule: Cron) -> tuple[native.Expression, native.Zone]:
    """The compiled expression and zone, kept for the next call. Raises CallerError with every fault."""
    try:
        return _expression(schedule.cron), zones.zone(schedule.time_zone)
    except (native.ExpressionError, zones.UnknownZoneError):
        raise CallerError(faults_of(schedule.cron, schedule.time_zone)) from None


@lru_cache(maxsize=EXPRESSIONS_KEPT)
def _expression(cron: str) -> native.Expression:
    return native.compile_expression(cron)


def next_time(schedule: RunAt | Cron, after_ms: int) -> int | None:
    """The first time later than `after_ms`; None if there is none."""
    if isinstance(schedule, RunAt):
        return _once(schedule, after_ms)
    times_s = native.next_n(*compiled(schedule), _after_s(schedule, after_ms), 1)
    return _ms_within(schedule, times_s[0]) if times_s else None


def next_times(schedules: Sequence[RunAt | Cron], after_ms: Sequence[int]) -> list[int | None]:
    """For each schedule its first time later than the instant beside it; all crons in one native call."""
    times = [_once(schedule, after) for schedule, after in zip(schedules, after_ms, strict=True)]
    crons = [(place, schedule) for place, schedule in enumerate(schedules) if isinstance(schedule, Cron)]
    pairs = [compiled(cron) for _, cron in crons]
    after_s = array("q", [_after_s(cron, after_ms[place]) for place, cron in crons])
    found_s = array("q", bytes(after_s.itemsize * len(crons)))
    native.next_times([pair[0] for pair in pairs], [pair[1] for pair in pairs], after_s, found_s)
    for (place, cron), time_s in zip(crons, found_s, strict=True):
        times[place] = _ms_within(cron, time_s)
    return times


def next_n_times(schedule: RunAt | Cron, after_ms: int, count: int) -> list[int]:
    """The next `count` times later than `after_ms`; fewer where the schedule ends."""
    if isinstance(schedule, RunAt):
        return [schedule.run_at_ms] if count and schedule.run_at_ms > after_ms else []
    times_s = native.next_n(*compiled(schedule), _after_s(schedule, after_ms), count)
    return [time_s * 1000 for time_s in times_s if _ms_within(schedule, time_s) is not None]


def latest_time(schedule: RunAt | Cron, after_ms: int, until_ms: int) -> int | None:
    """The last time in (after, until]; None if there is none. Jumps back from `until`, however long ago that is."""
    found = latest_times(schedule, after_ms, until_ms, 1)
    return found[0] if found else None


def latest_times(schedule: RunAt | Cron, after_ms: int, until_ms: int, count: int) -> list[int]:
    """The last `count` times in (after, until], earliest first; fewer if there are not so many."""
    if isinstance(schedule, RunAt):
        return [schedule.run_at_ms] if count and after_ms < schedule.run_at_ms <= until_ms else []
    times_s = native.last_n(*compiled(schedule), *_window_s(schedule, after_ms, until_ms), count)
    return [time_s * 1000 for time_s in times_s]


def count_times(schedule: RunAt | Cron, after_ms: int, until_ms: int) -> int:
    """How many times lie in (after, until]. Counted by the day, never one by one: a year of every second costs what a
    year of midnights does."""
    if isinstance(schedule, RunAt):
        return int(after_ms < schedule.run_at_ms <= until_ms)
    return native.count_times(*compiled(schedule), *_window_s(schedule, after_ms, until_ms))


def _once(schedule: RunAt | Cron, after_ms: int) -> int | None:
    return schedule.run_at_ms if isinstance(schedule, RunAt) and schedule.run_at_ms > after_ms else None


def _after_s(schedule: Cron, after_ms: int) -> int:
    """The second after which to search: `start_at` itself may be a time."""
    after_s = after_ms // 1000
    return after_s if schedule.start_at_ms is None else max(after_s, -(-schedule.start_at_ms // 1000) - 1)


def _window_s(schedule: Cron, after_ms: int, until_ms: int) -> tuple[int, int]:
    until_s = (until_ms if schedule.end_at_ms is None else min(until_ms, schedule.end_at_ms)) // 1000
    return _after_s(schedule, after_ms), until_s


def _ms_within(schedule: Cron, time_s: int) -> int | None:
    if time_s == native.NEVER:
        return None
    time_ms = time_s * 1000
    return time_ms if schedule.end_at_ms is None or time_ms <= schedule.end_at_ms else None


def preview(schedule: RunAt | Cron, after_ms: int, count: int) -> list[Preview]:
    """The next times as people read them: by their own clock, with what a clock change does to them."""
    times = next_n_times(schedule, after_ms, count)
    if isinstance(schedule, RunAt):
        return [Preview(time_ms, format_local(time_ms, 0), None) for time_ms in times]
    zone = compiled(schedule)[1]
    return [Preview(t, format_local(t, zone.offset_at(t // 1000)), mark_of(schedule, t)) for t in times]


def mark_of(schedule: RunAt | Cron, time_ms: int) -> Mark | None:
    """How one of the schedule's times meets a clock change."""
    if isinstance(schedule, RunAt):
        return None
    expression, zone = compiled(schedule)
    found = native.clock_change(expression, zone, time_ms // 1000)
    if found == native.FIRST_PASS and not expression.interval:
        return Mark.FIRST_TIME_ONLY
    return _MARKS[found]


_MARKS = {
    native.PLAIN: None,
    native.MOVED: Mark.MOVED,
    native.FIRST_PASS: Mark.FIRST_OF_TWO,
    native.SECOND_PASS: Mark.SECOND_OF_TWO,
}


def clock_changes(schedule: RunAt | Cron, after_ms: int, until_ms: int) -> list[ClockChange]:
    """The clock changes in (after, until] at which times of the schedule are missing or come twice."""
    if isinstance(schedule, RunAt):
        return []
    expression, zone = compiled(schedule)
    return [
        ClockChange(at_s * 1000, before_s, after_s, _effect(expression, after_s - before_s), wall_times)
        for at_s, before_s, after_s in zone.changes(*_window_s(schedule, after_ms, until_ms), CHANGES_MAX)
        if (wall_times := native.count_walls(expression, *sorted((at_s + before_s, at_s + after_s))))
    ]


def _effect(expression: native.Expression, forward_s: int) -> Effect:
    if forward_s < 0:
        return Effect.BOTH_TIMES if expression.interval else Effect.FIRST_TIME_ONLY
    return Effect.SKIPPED if expression.interval or forward_s > native.GAP_MAX_S else Effect.MOVED
