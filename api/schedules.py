"""A job's schedule as tenants write and read it: one time, or a cron expression in a zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from api.fields import Instant, Reading, Text
from api.job_reading import JobReading
from api.records import OneOf, Record, Slot
from engine.model import Cron, RunAt
from engine.rules import schedule as schedules
from engine.rules import timestamps
from engine.rules.timestamps import format_time

# A call that was due this long ago is still made at once; a time before that is a mistake.
PAST_MS_MAX = 5 * 60_000

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class CronText:
    """A cron expression; what is allowed is said by the compiled reader."""

    text = Text(256, example="0 9 * * MON-FRI")

    def read(self, value: Any, at: str, reading: Reading) -> str | None:
        text = self.text.read(value, at, reading)
        reading.faults += [] if text is None else schedules.cron_faults(text, at)
        return text

    def schema(self) -> dict[str, Any]:
        return self.text.schema()


@dataclass(frozen=True, slots=True)
class ZoneName:
    """The exact name of a tzdata zone."""

    text = Text(64, example="Europe/Paris")

    def read(self, value: Any, at: str, reading: Reading) -> str | None:
        text = self.text.read(value, at, reading)
        reading.faults += [] if text is None else schedules.zone_faults(text, at)
        return text

    def schema(self) -> dict[str, Any]:
        return self.text.schema()


def show_schedule(schedule: RunAt | Cron) -> dict[str, Any]:
    """The schedule as the API answers it."""
    if isinstance(schedule, RunAt):
        return {"run_at": format_time(schedule.run_at_ms)}
    shown = {"cron": schedule.cron, "time_zone": schedule.time_zone}
    if schedule.start_at_ms is not None:
        shown["start_at"] = format_time(schedule.start_at_ms)
    if schedule.end_at_ms is not None:
        shown["end_at"] = format_time(schedule.end_at_ms)
    return shown


def a_year_after(now_ms: int) -> int:
    """The same date and time a year later; of a 29th of February the 1st of March."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        later = now.replace(year=now.year + 1)
    except ValueError:
        later = now.replace(year=now.year + 1, month=3, day=1)
    return int(later.timestamp() * 1000)


def _build_run_at(given: dict[str, Any], at: str, reading: Reading) -> RunAt:
    read = RunAt(given["run_at"])
    if isinstance(reading, JobReading) and reading.takes(read):
        return read
    if read.run_at_ms < reading.now_ms - PAST_MS_MAX:
        reading.fault(f"{at}/run_at", "more than 5 minutes past", timestamps.EXAMPLE)
    elif read.run_at_ms > a_year_after(reading.now_ms):
        reading.fault(f"{at}/run_at", "more than a year ahead", format_time(reading.now_ms // 1000 * 1000 + _DAY_MS))
    return read


def _build_cron(given: dict[str, Any], at: str, reading: Reading) -> Cron:
    read = Cron(given["cron"], given.get("time_zone", "UTC"), given.get("start_at"), given.get("end_at"))
    if isinstance(reading, JobReading) and reading.takes(read):
        return read
    if read.start_at_ms is not None and read.end_at_ms is not None and read.start_at_ms > read.end_at_ms:
        reading.fault(f"{at}/end_at", "before start_at")
    elif schedules.next_time(read, reading.now_ms) is None:
        reading.fault(*_nothing_left(read, at))
    return read


def _nothing_left(read: Cron, at: str) -> tuple[str, str]:
    """(pointer, detail): the bound that leaves a schedule no time, which must be one that was given."""
    if read.end_at_ms is not None:
        return f"{at}/end_at", "no time of this schedule is left before its end"
    if read.start_at_ms is not None:
        return f"{at}/start_at", "no time of this schedule is left after it, up to year 9999"
    return f"{at}/cron", "no time of this schedule is left up to year 9999"


RUN_AT = Record(
    "RunAt",
    {
        "run_at": Slot(
            Instant(whole_second=True),
            "A whole second, up to a year ahead. Up to 5 minutes past it is called at once.",
            required=True,
        )
    },
    _build_run_at,
    "Once.",
)

CRON = Record(
    "Cron",
    {
        "cron": Slot(
            CronText(),
            "Minute, hour, day of month, month, day of week; six fields begin with seconds; or a macro: @daily.",
            required=True,
        ),
        "time_zone": Slot(ZoneName(), "An exact tzdata name.", default="UTC"),
        "start_at": Slot(Instant(), "No time before this one."),
        "end_at": Slot(Instant(), "No time after this one."),
    },
    _build_cron,
    "Again and again, by a cron expression in a time zone.",
)

SCHEDULE = OneOf("Schedule", {"run_at": RUN_AT, "cron": CRON})
