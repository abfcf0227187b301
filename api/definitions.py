"""A job as tenants write and read it: the fields with their bounds, and the way from and to a ``Definition``."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from api.fields import (
    AnyValue,
    Choice,
    Duration,
    Flag,
    Instant,
    Named,
    OneOf,
    Reading,
    Record,
    Shown,
    Slot,
    Text,
    Whole,
    choice_of,
    echo,
    pointer_part,
)
from engine.model import (
    Cron,
    Definition,
    FunctionTarget,
    HeaderValue,
    HttpTarget,
    MissedRuns,
    Overlap,
    Priority,
    RetryPolicy,
    RunAt,
)
from engine.rules import schedule as schedules
from engine.rules import timestamps
from engine.rules.durations import format_duration
from engine.rules.headers import header_faults
from engine.rules.target_text import URL_BYTES_MAX, Refusal, Target, read_target
from engine.rules.timestamps import format_time

NAME = Text(
    128,
    re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}"),
    "a name: a letter or digit, then up to 127 letters, digits, dots, underscores or hyphens",
    "nightly-report",
)

NAME_PREFIX = Text(
    128,
    re.compile("[A-Za-z0-9._-]{0,128}"),
    "the beginning of a name: letters, digits, dots, underscores, hyphens",
    "nightly-",
)

BODY_BYTES_MAX = 256 * 1024
LABELS_MAX = 16
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
JOB_STATES = ("active", "paused", "finished", "invalid")
# A call that was due this long ago is still made at once; a time before that is a mistake.
PAST_MS_MAX = 5 * 60_000

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
HTTP_TIMEOUT_MS_MAX = 15 * 60_000
FUNCTION_TIMEOUT_MS_MAX = 6 * _HOUR_MS


@dataclass(slots=True)
class JobReading(Reading):
    """A job's body, read beside the job as it is stored.

    ``stored`` is what an equal schedule and the fingerprints of secret headers are compared with; ``fingerprint``
    makes one of a secret value.
    With ``any_time`` a schedule need not have a time to come. ``judge_url`` is the operator's guard of targets.
    """

    stored: Definition | None = None
    fingerprint: Callable[[str], str] = str
    judge_url: Callable[[str], Target | Refusal] = read_target
    any_time: bool = False

    def takes(self, schedule: RunAt | Cron) -> bool:
        """Whether this schedule stands whatever the time is now: it is stored already, or nobody asks for the time."""
        return self.any_time or (self.stored is not None and self.stored.schedule == schedule)


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """A job's body, read: ``paused`` is None where the body does not say."""

    definition: Definition
    paused: bool | None


@dataclass(frozen=True, slots=True)
class Url:
    """A target's address, judged by its text alone."""

    def read(self, value: Any, at: str, reading: Reading) -> str | None:
        judge = reading.judge_url if isinstance(reading, JobReading) else read_target
        text: str | None = Text(URL_BYTES_MAX, example=URL_EXAMPLE).read(value, at, reading)
        if text is not None:
            target = judge(text)
            if not isinstance(target, Refusal):
                return text
            reading.fault(at, target.for_tenant, URL_EXAMPLE)
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "uri", "maxLength": URL_BYTES_MAX, "examples": [URL_EXAMPLE]}


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes in base64 (RFC 4648, with padding)."""

    def read(self, value: Any, at: str, reading: Reading) -> bytes | None:
        text: str | None = Text(BODY_BYTES_MAX * 4 // 3 + 4, example="AAEC").read(value, at, reading)
        if text is None:
            return None
        try:
            return _within_bounds(base64.b64decode(text, validate=True), at, reading)
        except (binascii.Error, ValueError):
            reading.fault(at, f"{echo(text)} is not base64 with padding", "AAEC")
            return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64", "examples": ["AAEC"]}


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


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body that is text, bounded in bytes."""

    def read(self, value: Any, at: str, reading: Reading) -> bytes | None:
        text = Text(BODY_BYTES_MAX).read(value, at, reading)
        return None if text is None else _within_bounds(text.encode(), at, reading)

    def schema(self) -> dict[str, Any]:
        return Text(BODY_BYTES_MAX).schema()


@dataclass(frozen=True, slots=True)
class Header:
    """A header's value: a string, or an object for a secret one."""

    def read(self, value: Any, at: str, reading: Reading) -> HeaderValue | None:
        if isinstance(value, str):
            return HeaderValue(value)
        read: HeaderValue | None = SECRET_HEADER.read(value, at, reading)
        return read

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [{"type": "string"}, SECRET_HEADER.schema()]}


@dataclass(frozen=True, slots=True)
class Headers:
    """All headers of a call, sorted by name: their order in JSON means nothing."""

    named = Named(Text(128, example="X-Order-Id"), Header(), entries_max=64)

    def read(self, value: Any, at: str, reading: Reading) -> tuple[tuple[str, HeaderValue], ...]:
        headers = {name: read for name, read in self.named.read(value, at, reading).items() if read is not None}
        reading.faults += header_faults([(name, read.value) for name, read in headers.items()], at)
        return tuple(sorted(headers.items()))

    def schema(self) -> dict[str, Any]:
        return self.named.schema()


def read_job(document: Any, reading: JobReading) -> WrittenJob | None:
    """The job a body describes, defaults filled in; None if ``reading.faults`` has anything to say."""
    job: WrittenJob | None = JOB.read(document, "", reading)
    return job


def show_definition(definition: Definition, fingerprint: Callable[[str], str]) -> dict[str, Any]:
    """The definition as the API answers it: everything that was or could have been given, absent options left out."""
    shown: dict[str, Any] = {
        "schedule": _show_schedule(definition.schedule),
        "target": _show_target(definition.target, fingerprint),
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


def a_year_after(now_ms: int) -> int:
    """The same date and time a year later; of a 29th of February the 1st of March."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        later = now.replace(year=now.year + 1)
    except ValueError:
        later = now.replace(year=now.year + 1, month=3, day=1)
    return int(later.timestamp() * 1000)


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
        reading.fault(f"{at}/end_at", "no time of this schedule is left before its end")
    return read


def _build_http_target(given: dict[str, Any], at: str, reading: Reading) -> HttpTarget:
    if "body" in given and "body_base64" in given:
        reading.fault(f"{at}/body_base64", "body and body_base64 exclude each other")
    return HttpTarget(
        url=given["url"],
        method=given.get("method", "POST"),
        headers=given.get("headers", ()),
        body=given.get("body", given.get("body_base64")),
        body_is_text="body_base64" not in given,
    )


def _within_bounds(body: bytes, at: str, reading: Reading) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        reading.fault(at, f"at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    return body


def _build_secret_header(given: dict[str, Any], at: str, reading: Reading) -> HeaderValue | None:
    if given["secret"] is not True and "value" in given:
        return HeaderValue(given["value"])
    if "value" in given:
        return HeaderValue(given["value"], secret=True)
    kept = _kept_secret(at, given.get("fingerprint"), reading)
    if kept is None:
        reading.fault(at, "needs a value, or the fingerprint of the value that is stored")
    return kept


def _kept_secret(at: str, fingerprint: str | None, reading: Reading) -> HeaderValue | None:
    """The stored value of the same header, if it has this fingerprint."""
    if fingerprint is None or not isinstance(reading, JobReading) or reading.stored is None:
        return None
    target = reading.stored.target
    for name, value in target.headers if isinstance(target, HttpTarget) else ():
        same_header = at.endswith(f"/{pointer_part(name)}")
        if same_header and value.secret and reading.fingerprint(value.value) == fingerprint:
            return value
    return None


def _show_schedule(schedule: RunAt | Cron) -> dict[str, Any]:
    if isinstance(schedule, RunAt):
        return {"run_at": format_time(schedule.run_at_ms)}
    shown = {"cron": schedule.cron, "time_zone": schedule.time_zone}
    if schedule.start_at_ms is not None:
        shown["start_at"] = format_time(schedule.start_at_ms)
    if schedule.end_at_ms is not None:
        shown["end_at"] = format_time(schedule.end_at_ms)
    return shown


def _show_target(target: HttpTarget | FunctionTarget, fingerprint: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(target, FunctionTarget):
        return {"function": {"name": target.name, "payload": target.payload}}
    shown: dict[str, Any] = {
        "url": target.url,
        "method": target.method,
        "headers": {name: _show_header(value, fingerprint) for name, value in target.headers},
    }
    if target.body is not None and target.body_is_text:
        shown["body"] = target.body.decode()
    elif target.body is not None:
        shown["body_base64"] = base64.b64encode(target.body).decode()
    return {"http": shown}


def _show_header(value: HeaderValue, fingerprint: Callable[[str], str]) -> Any:
    if not value.secret:
        return value.value
    return {"secret": True, "fingerprint": fingerprint(value.value)}


# Where the API's name of a field and the model's differ.
_MODEL_NAMES = {
    "timeout": "timeout_ms",
    "late_after": "late_after_ms",
    "on_failure": "on_failure_url",
}

URL_EXAMPLE = "https://example.com/hooks/nightly"
_PLAIN = r"[^\x00-\x1f\x7f]"
LABEL_NAME = Text(
    64, re.compile("[A-Za-z0-9][A-Za-z0-9._/-]{0,63}"), "a label's name: letters, digits and ._/-", "team"
)
LABEL_VALUE = Text(
    256, re.compile(rf"(?! ){_PLAIN}*(?<! )|"), "a label's value: no controls, no space at either end", "billing"
)
_FUNCTION_NAME = Text(
    128, re.compile("[A-Za-z_][A-Za-z0-9._-]{0,127}"), "a function's name: letters, digits and ._-", "send_report"
)

SECRET_HEADER = Record(
    "SecretHeader",
    {
        "value": Slot(Text(8_192), "The value; answered never again."),
        "secret": Slot(Flag(), required=True),
        "fingerprint": Slot(Text(64), "What is answered instead of the value; sent back, it keeps the value."),
    },
    _build_secret_header,
    "A header whose value is written and never read.",
)

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

HTTP_TARGET = Record(
    "HttpTarget",
    {
        "url": Slot(Url(), required=True),
        "method": Slot(Choice({method: method for method in HTTP_METHODS}), default="POST"),
        "headers": Slot(Headers()),
        "body": Slot(BodyText(), "Sent as it is, in UTF-8; no Content-Type is added."),
        "body_base64": Slot(Base64(), "The body's bytes, where it is no text."),
    },
    _build_http_target,
    "An HTTP call.",
)
FUNCTION_TARGET = Record(
    "FunctionTarget",
    {
        "name": Slot(_FUNCTION_NAME, required=True),
        "payload": Slot(AnyValue(BODY_BYTES_MAX), "Any JSON value, handed to the function."),
    },
    lambda given, at, reading: FunctionTarget(given["name"], given.get("payload")),
    "A function on one of the tenant's own workers.",
)
TARGET = OneOf(
    "Target",
    {
        "http": Record(
            "TargetHttp", {"http": Slot(HTTP_TARGET, required=True)}, lambda given, at, reading: given["http"]
        ),
        "function": Record(
            "TargetFunction",
            {"function": Slot(FUNCTION_TARGET, required=True)},
            lambda given, at, reading: given["function"],
        ),
    },
)

RETRY = Record(
    "Retry",
    {
        "max_attempts": Slot(Whole(1, 100, 5), "Tries at most, the first one included.", default=5),
        "backoff": Slot(Duration(1, _DAY_MS, "10s"), "The first pause; it doubles.", default="10s"),
        "max_backoff": Slot(Duration(1, 7 * _DAY_MS, "1h"), "The longest pause.", default="1h"),
        "max_age": Slot(Duration(1, 7 * _DAY_MS, "24h"), "No try begins later than this.", default="24h"),
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
        "state": Slot(Shown({"type": "string", "enum": [*JOB_STATES]}), shown_only=True),
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
