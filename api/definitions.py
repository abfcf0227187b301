"""A job as tenants write and read it: the fields with their bounds, and the way from and to a ``Definition``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.fields import Duration, Flag, Instant, Reading, Shown, Text, Whole, choice_of
from api.job_reading import JobReading
from api.names import LABEL_NAME, LABEL_VALUE, NAME
from api.records import Named, Record, Slot
from api.schedules import SCHEDULE, show_schedule
from api.targets import TARGET, Url, show_target
from engine.model import Definition, HttpTarget, MissedRuns, Overlap, Priority, RetryPolicy
from engine.rules.durations import format_duration

LABELS_MAX = 16
JOB_STATES = ("active", "paused", "finished", "invalid")

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
HTTP_TIMEOUT_MS_MAX = 15 * 60_000
FUNCTION_TIMEOUT_MS_MAX = 6 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """A job's body, read: ``paused`` is None where the body does not say."""

    definition: Definition
    paused: bool | None


def read_job(document: Any, reading: JobReading) -> WrittenJob | None:
    """The job a body describes, defaults filled in; None if ``reading.faults`` has anything to say."""
    job: WrittenJob | None = JOB.read(document, "", reading)
    return job


def show_definition(definition: Definition, fingerprint: Callable[[str], str]) -> dict[str, Any]:
    """The definition as the API answers it: everything that was or could have been given, absent options left out."""
    shown: dict[str, Any] = {
        "schedule": show_schedule(definition.schedule),
        "target": show_target(definition.target, fingerprint),
        "priority": definition.priority.name.lower(),
        "timeout": format_duration(definition.timeout_ms),
        "retry": {
            "max_attempts": definition.retry.max_attempts,
            "backoff": format_duration(definition.retry.backoff_ms),
            "max_backoff": format_duration(definition.retry.max_backoff_ms),
            "max_age": format_duration(definition.retry.max_age_ms),
        },
        "missed_runs": definition.missed_runs.name.lower(),
        "max_catch_up": definition.max_catch_up,
        "overlap": definition.overlap.name.lower(),
        "late_after": format_duration(definition.late_after_ms),
        "labels": dict(definition.labels),
        "description": definition.description,
    }
    if definition.on_failure_url is not None:
        shown["on_failure"] = {"url": definition.on_failure_url}
    return shown


def _build_job(given: dict[str, Any], at: str, reading: Reading) -> WrittenJob | None:
    paused = given.pop("paused", None)
    labels = given.pop("labels", {})
    target = given["target"]
    timeout_ms_max = HTTP_TIMEOUT_MS_MAX if isinstance(target, HttpTarget) else FUNCTION_TIMEOUT_MS_MAX
    if given.get("timeout", 0) > timeout_ms_max:
        reading.fault(f"{at}/timeout", f"at most {format_duration(timeout_ms_max)} for this kind of target", "30s")
        return None
    fields = {_MODEL_NAMES.get(name, name): value for name, value in given.items()}
    return WrittenJob(Definition(labels=tuple(sorted(labels.items())), **fields), paused)


# Where the API's name of a field and the model's differ.
_MODEL_NAMES = {
    "timeout": "timeout_ms",
    "late_after": "late_after_ms",
    "on_failure": "on_failure_url",
}

RETRY = Record(
    "Retry",
    {
        "max_attempts": Slot(Whole(1, 100, 5), "Tries at most, the first one included.", default=5),
        "backoff": Slot(Duration(1, _DAY_MS, "10s"), "The first pause; it doubles.", default="10s"),
        "max_backoff": Slot(Duration(1, 7 * _DAY_MS, "1h"), "The longest pause.", default="1h"),
        "max_age": Slot(
            Duration(1, 7 * _DAY_MS, "24h"),
            "No try begins later than this after the scheduled time; a function unclaimed for so long fails.",
            default="24h",
        ),
    },
    lambda given, at, reading: RetryPolicy(
        **{(name if name == "max_attempts" else f"{name}_ms"): value for name, value in given.items()}
    ),
    "Pauses are drawn at random from zero to the doubling bound.",
)

ON_FAILURE = Record(
    "OnFailure",
    {"url": Slot(Url(), required=True)},
    lambda given, at, reading: given["url"],
    "Who is told when a run has failed for good.",
)

_TIME = Instant()
CLOCK_CHANGES = Shown({"type": "array", "items": {"$ref": "#/components/schemas/ClockChange"}})
_TIME_OR_NULL = Shown({"type": ["string", "null"], "format": "date-time"})

JOB = Record(
    "Job",
    {
        "schedule": Slot(SCHEDULE, required=True),
        "target": Slot(TARGET, required=True),
        "priority": Slot(choice_of(Priority), default="normal"),
        "timeout": Slot(
            Duration(100, FUNCTION_TIMEOUT_MS_MAX), "15m at most for HTTP, 6h for functions.", default="30s"
        ),
        "retry": Slot(RETRY),
        "missed_runs": Slot(
            choice_of(MissedRuns), "What becomes of times that a pause or an outage left out.", default="latest"
        ),
        "max_catch_up": Slot(Whole(1, 1_000, 100), "How many missed runs `all` makes up for.", default=100),
        "overlap": Slot(choice_of(Overlap), "What a run does while the one before is open.", default="allow"),
        "on_failure": Slot(ON_FAILURE),
        "late_after": Slot(
            Duration(1_000, 7 * _DAY_MS, "60s"), "A start later than this is told as late.", default="60s"
        ),
        "labels": Slot(Named(LABEL_NAME, LABEL_VALUE, LABELS_MAX)),
        "paused": Slot(Flag(), "Absent: stays as it is."),
        "description": Slot(Text(4_096, example="Sends the nightly report"), default=""),
        "name": Slot(NAME, shown_only=True),
        "job_id": Slot(Shown({"type": "string"}), "A new one for every creation.", shown_only=True),
        "version": Slot(Shown({"type": "integer"}), "Grows with every change.", shown_only=True),
        "state": Slot(Shown({"type": "string", "enum": [*JOB_STATES, "deleted"]}), shown_only=True),
        "note": Slot(Shown({"type": "string"}), "Why the job is paused or invalid.", shown_only=True),
        "next_run_at": Slot(_TIME_OR_NULL, "The first scheduled time to come.", shown_only=True),
        "created_at": Slot(_TIME, shown_only=True),
        "updated_at": Slot(_TIME, shown_only=True),
        "effective_from": Slot(_TIME_OR_NULL, "The first run with this version of the job.", shown_only=True),
        "clock_changes": Slot(
            CLOCK_CHANGES,
            "Clock changes that the job meets.",
            shown_only=True,
        ),
    },
    _build_job,
    "A schedule and what is called at its times.",
)
