"""JSON Schemas of what is only answered. What is also sent has its schema in the records that read it."""

from __future__ import annotations

from typing import Any

from api.definitions import JOB
from api.errors import KINDS
from api.fields import Instant
from api.limits import DEFAULTS
from api.names import NAME
from api.runs import STATES
from api.stats import ENDS, SPANS_MS
from engine.model import OutcomeKind, Reason, Trigger
from engine.rules.schedule import Effect, Mark
from engine.rules.work import Stop

Schema = dict[str, Any]


def _words(kind: Any) -> list[str]:
    return [member.name.lower() for member in kind]


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, says: str = "") -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }
    return schema | ({"description": says} if says else {})


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return {"type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    return schema | {"type": [schema["type"], "null"]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _page(key: str, item: str, optional: dict[str, Schema] | None = None) -> Schema:
    says = "Absent or null where there is no further page; else the `page_token` of the next one."
    token: Schema = {"type": ["string", "null"], "description": says}
    return _object({key: _list(ref(item)), "next_page_token": token}, optional)


TIME = Instant().schema()
TIME_OR_NULL = _or_null(TIME)
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string"}

_RUN = {
    "job": NAME.schema(),
    "job_id": TEXT,
    "scheduled_at": TIME,
    "state": {"type": "string", "enum": list(STATES)},
    "reason": _or_null({"type": "string", "enum": _words(Reason)}),
    "trigger": {"type": "string", "enum": _words(Trigger)},
    "started_at": TIME_OR_NULL,
    "finished_at": TIME_OR_NULL,
    "lag_ms": {
        "type": ["integer", "null"],
        "description": "From the scheduled time to the start of the call. Where the reason is held, a limit was why.",
    },
    "attempts": COUNT | {"description": "Attempts that may have been sent."},
    "outcome": _or_null({"type": "string", "enum": _words(OutcomeKind)}),
    "status_code": {"type": ["integer", "null"]},
    "job_version": {"type": "integer", "minimum": 1},
}
_RUN_OPTIONAL = {
    "clock_change": {"type": "string", "enum": [mark.value for mark in Mark]},
    "skipped_from": TIME | {"description": "Of a skipped range: its first time; `scheduled_at` is its last."},
    "skipped": COUNT | {"description": "Of a skipped range: how many times."},
}
_OF_FUNCTION = {
    "function": TEXT | {"description": "The function of the run."},
    "progress": {"type": ["integer", "null"], "description": "Percent, as the worker last said."},
    "note": {"type": ["string", "null"]},
    "result": {"description": "What the worker completed it with; absent where there is none."},
    "waiting": TEXT | {"description": "Why a due run does not begin."},
}
_WORK = {
    "token": TEXT | {"description": "What heartbeats and the end of this run are said with."},
    "function": TEXT,
    "payload": {"description": "As the job says, any JSON value."},
    "job": NAME.schema(),
    "job_id": TEXT,
    "scheduled_at": TIME,
    "attempt": COUNT,
    "idempotency_key": TEXT | {"description": "The same for every attempt of a run."},
    "deadline": TIME | {"description": "When the run's `timeout` is over."},
    "heartbeat_interval": TEXT,
    "trigger": {"type": "string", "enum": _words(Trigger)},
}
_STOPS = [stop.value for stop in Stop]
_ATTEMPT = {
    "attempt": COUNT,
    "started_at": TIME_OR_NULL,
    "finished_at": TIME,
    "outcome": _or_null({"type": "string", "enum": _words(OutcomeKind)}),
    "status_code": {"type": ["integer", "null"]},
    "detail": {"type": ["string", "null"]},
    "answer": {"type": ["string", "null"], "description": "The first 1,024 bytes of what was answered."},
}
_CLOCK_CHANGE = {
    "at": TIME,
    "local_before": TEXT,
    "local_after": TEXT,
    "effect": {"type": "string", "enum": [effect.value for effect in Effect]},
    "times": COUNT,
    "detail": TEXT,
}
_FAULT = _object(
    {"pointer": TEXT | {"description": "JSON pointer into the body; `?name` for a parameter."}, "detail": TEXT},
    {"example": TEXT | {"description": "A value that would do."}},
)
_SECRET = {"secret": TEXT, "created_at": TIME, "retires_at": TIME_OR_NULL}
_LIMITS: Schema = {"type": "object", "additionalProperties": COUNT, "required": sorted(DEFAULTS)}

_MEAN_AND_MAX = _object({"mean": {"type": "number"}, "max": {"type": "integer"}}, says="Null where nothing was called.")
_STARTS: Schema = {
    "type": "number",
    "minimum": 0,
    "description": "Runs called a second, the mean from runs.last_hour.from to runs.last_hour.to.",
}
_SPANS = {name: ref("Stats") for name in SPANS_MS}

ANSWERS: dict[str, Schema] = {
    "Problem": _object(
        {
            "type": {"type": "string", "enum": [kind.type for kind in KINDS]},
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
        },
        {"errors": _list(ref("Fault"))},
        "RFC 9457, with every fault that was found.",
    ),
    "Fault": _FAULT,
    "JobPage": _page("jobs", JOB.name),
    "Run": _object(_RUN, _RUN_OPTIONAL, "One scheduled time of a job, or one start by hand."),
    "RunWithAttempts": _object(_RUN | {"attempt_list": _list(ref("Attempt"))}, _RUN_OPTIONAL | _OF_FUNCTION),
    "WorkClaimed": _object({"runs": _list(ref("Work"))}),
    "Work": _object(_WORK),
    "WorkEnds": _object(
        {
            "results": _list(
                _object(
                    {"status": {"type": "integer"}},
                    {"run": ref("Run"), "problem": ref("Problem")},
                    "In the order of the call; each like the answer to a call of its own.",
                )
            )
        }
    ),
    "WorkRenewed": _object(
        {"stop": {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": _STOPS}]}, "lease_until": TIME},
        says="Where `stop` is not false, the worker is to stop, and says how it ended all the same.",
    ),
    "Attempt": _object(_ATTEMPT),
    "RunPage": _page("runs", "Run", {"warnings": _list(TEXT) | {"description": "What the list may lack for now."}}),
    "JobStats": _object({"job": NAME.schema(), **_SPANS}),
    "Stats": _object(
        {
            "from": TIME,
            "to": TIME | {"description": "What is later is not counted yet."},
            "runs": _object(dict.fromkeys(ENDS, COUNT)),
            "lag_ms": _or_null(_MEAN_AND_MAX),
            "duration_ms": _or_null(_MEAN_AND_MAX),
            "complete": {
                "type": "boolean",
                "description": "False where there were more runs than could be counted, or some are not to be had now.",
            },
        },
        says="Ended runs by their scheduled time; lag and duration are those of the last call of each.",
    ),
    "DeadLetter": _object(_RUN | {"died_at": TIME}, _RUN_OPTIONAL),
    "DeadLetterPage": _page("dead_letters", "DeadLetter"),
    "Acted": _object({"count": COUNT, "more": {"type": "boolean", "description": "Whether to call again."}}),
    "BatchResults": _object(
        {
            "results": _list(
                _object(
                    {"name": NAME.schema(), "status": {"type": "integer"}},
                    {"job": JOB.schema(), "problem": ref("Problem")},
                )
            )
        }
    ),
    "CronPreview": _object(
        {
            "description": TEXT,
            "times": _list(
                _object(
                    {
                        "time": TIME,
                        "local": TEXT,
                        "clock_change": _or_null({"type": "string", "enum": [mark.value for mark in Mark]}),
                    }
                )
            ),
        }
    ),
    "ClockChange": _object(_CLOCK_CHANGE),
    "ClockChangePage": _object(
        {
            "jobs": _list(_object({"name": NAME.schema(), "clock_changes": _list(ref("ClockChange"))})),
            "next_page_token": {"type": ["string", "null"]},
        }
    ),
    "Forecast": _object(
        {
            "from": TIME,
            "to": TIME,
            "runs": COUNT,
            "complete": {"type": "boolean", "description": "False where there were more jobs than one call counts."},
            "seconds": _list(_object({"second": TIME, "runs": COUNT})),
        }
    ),
    "Usage": _object(
        {
            "limits": _LIMITS,
            "used": _object({"requests_per_s": COUNT, "jobs": COUNT, "starts_per_s": _STARTS}),
            "runs": _object(_SPANS),
        }
    ),
    "SigningSecrets": _object({"signing_secrets": _list(_object(_SECRET))}),
    "Live": _object({"live": {"type": "boolean"}}),
    "Ready": _object(
        {"ready": {"type": "boolean"}, "shards": COUNT, "away": _list(_object({"shard": COUNT, "problem": TEXT}))}
    ),
}
