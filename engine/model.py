"""The nouns: states, kinds and the values that travel between the layers. Numbers of the enums stand in the tables."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import orjson

HOUR_MS = 3_600_000


class JobState(IntEnum):
    """State of a job's row. ``finished`` is not stored: an active job without a next time whose last time has come."""

    ACTIVE = 1
    PAUSED = 2
    INVALID = 3
    DELETED = 4


class RunState(IntEnum):
    """State of a run's row. A claimed run is RUNNING from the claim on; shown as pending until its second, as one that
    is WAITING always is."""

    RUNNING = 2
    WAITING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    SKIPPED = 7
    WITHDRAWN = 8


class Priority(IntEnum):
    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class Trigger(IntEnum):
    SCHEDULE = 1
    CATCH_UP = 2
    MANUAL = 3


class Overlap(IntEnum):
    ALLOW = 1
    SKIP = 2
    WAIT = 3


class MissedRuns(IntEnum):
    LATEST = 1
    ALL = 2
    SKIP = 3


class VersionEvent(IntEnum):
    """What wrote a job's version."""

    CREATED = 1
    EDITED = 2
    PAUSED = 3
    RESUMED = 4
    DELETED = 5


class OutcomeKind(IntEnum):
    """How an attempt ended. ANSWERED carries a status code; every other kind is a failed call or no call at all."""

    ANSWERED = 1
    TIMEOUT = 2
    DNS_FAILED = 3
    CONNECT_FAILED = 4
    TLS_FAILED = 5
    CONNECTION_BROKEN = 6
    PROTOCOL_ERROR = 7
    ANSWER_TOO_LARGE = 8
    TARGET_REFUSED = 9
    CANCELLED = 10
    WORKER_LOST = 11
    FUNCTION_FAILED = 12
    FUNCTION_DONE = 13


class Reason(IntEnum):
    """Why a run was skipped, deferred or failed without an answer."""

    RETRY = 1
    REAPED = 2
    CATCH_UP = 3
    MANUAL = 4
    OVERLAP = 5
    HELD = 6
    SWEPT = 7
    GIVEN_BACK = 8
    SCHEDULED = 9
    MISSED = 20
    PAUSED = 21
    DELETED = 22
    TOO_OLD = 23
    TENANT_DISABLED = 24
    MAX_CATCH_UP = 25
    WORKER_LOST = 26
    MAX_AGE = 27
    BLOCKED = 28
    INVALID = 29


class NoticeKind(IntEnum):
    """What a tenant is told about."""

    FAILED = 1
    SKIPPED = 2
    LATE = 3


class SignalKind(IntEnum):
    """What a worker must know at once about a run it holds."""

    WITHDRAWN = 1
    CANCEL = 2


OPEN_STATES = frozenset({RunState.RUNNING, RunState.WAITING})
FINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})


class RunKey(NamedTuple):
    """A run's place in the runs table; sorting by it is the lock order."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int


@dataclass(frozen=True, slots=True)
class HeaderValue:
    """A header's value; a secret one is never shown again.

    ``sealed_by`` names the key of one that is as it is stored: encrypted (see engine/store/sealed.py).
    """

    value: str
    secret: bool = False
    sealed_by: str = ""

    def __repr__(self) -> str:
        return "HeaderValue(…)" if self.secret else f"HeaderValue({self.value!r})"


# How an encoded definition says of a header that it is secret, and that it is sealed. Where a tenant's own text has
# the same bytes, somebody looks once more and finds nothing.
SECRET_MARK = b",true]"
SEALED_MARK = b',"key '


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """What is called: ``body`` is sent as it is; ``body_is_text`` only says how it is answered."""

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, HeaderValue], ...] = ()
    body: bytes | None = None
    body_is_text: bool = True


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """A function on a tenant's worker; ``payload`` is any JSON value."""

    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class RunAt:
    """Once, at a whole second."""

    run_at_ms: int


@dataclass(frozen=True, slots=True)
class Cron:
    """By a cron expression in an IANA zone, between optional ends (both inclusive)."""

    cron: str
    time_zone: str = "UTC"
    start_at_ms: int | None = None
    end_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most ``max_attempts`` tries; the n-th pause is drawn from [0, min(max_backoff, backoff * 2**(n-1))]."""

    max_attempts: int = 5
    backoff_ms: int = 10_000
    max_backoff_ms: int = 3_600_000
    max_age_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Definition:
    """What a version of a job says: everything that decides how and when it is called, defaults filled in."""

    schedule: RunAt | Cron
    target: HttpTarget | FunctionTarget
    priority: Priority = Priority.NORMAL
    timeout_ms: int = 30_000
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    missed_runs: MissedRuns = MissedRuns.LATEST
    max_catch_up: int = 100
    overlap: Overlap = Overlap.ALLOW
    on_failure_url: str | None = None
    late_after_ms: int = 60_000
    labels: tuple[tuple[str, str], ...] = ()
    description: str = ""

    def encode(self) -> bytes:
        """Canonical JSON, the stored form: equal definitions give equal bytes."""
        return orjson.dumps(
            {
                "schedule": _encode_schedule(self.schedule),
                "target": _encode_target(self.target),
                "priority": int(self.priority),
                "timeout_ms": self.timeout_ms,
                "retry": [
                    self.retry.max_attempts,
                    self.retry.backoff_ms,
                    self.retry.max_backoff_ms,
                    self.retry.max_age_ms,
                ],
                "missed_runs": int(self.missed_runs),
                "max_catch_up": self.max_catch_up,
                "overlap": int(self.overlap),
                "on_failure_url": self.on_failure_url,
                "late_after_ms": self.late_after_ms,
                "labels": sorted(self.labels),
                "description": self.description,
            },
            option=orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def salvage(cls, stored: bytes) -> Definition:
        """The same; UNREADABLE for a row that is broken, so that its job can still be listed, edited and deleted."""
        try:
            return cls.decode(stored)
        except (ValueError, TypeError, LookupError):
            return UNREADABLE

    @classmethod
    def decode(cls, stored: bytes) -> Definition:
        """The inverse of ``encode``."""
        document = orjson.loads(stored)
        labels = document["labels"]
        # Planned for the first time, a run costs this once: members by number and shared policies halve it.
        return cls(
            schedule=decode_schedule(document["schedule"]),
            target=_decode_target(document["target"]),
            priority=_PRIORITIES[document["priority"]],
            timeout_ms=document["timeout_ms"],
            retry=_retry_policy(*document["retry"]),
            missed_runs=_MISSED_RUNS[document["missed_runs"]],
            max_catch_up=document["max_catch_up"],
            overlap=_OVERLAPS[document["overlap"]],
            on_failure_url=document["on_failure_url"],
            late_after_ms=document["late_after_ms"],
            labels=tuple((key, value) for key, value in labels) if labels else (),
            description=document["description"],
        )


UNREADABLE = Definition(RunAt(0), HttpTarget(""), description="what is stored of this job cannot be read")

_PRIORITIES = {member.value: member for member in Priority}
_MISSED_RUNS = {member.value: member for member in MissedRuns}
_OVERLAPS = {member.value: member for member in Overlap}
_retry_policy = lru_cache(1024)(RetryPolicy)


def partition_of(tenant_id: int, name: str, partitions: int) -> int:
    """The partition of a job: a stable hash of (tenant, name), fixed for the life of a fleet."""
    digest = hashlib.blake2b(f"{tenant_id}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


# Job ids count milliseconds from here; 41 bits of them last until 2094.
_JOB_ID_EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z


_JOB_ID_RANDOM_BITS = 12
_JOB_ID_PARTITION_BITS = 10
_newest_job_id: dict[int, int] = {}


def mint_job_id(now_ms: int, partition_id: int) -> int:
    """A new job id of 63 bits: 41 of time, 10 of its partition, 12 random, so that ids grow with time.

    That no two jobs share one is not left to chance: this process never mints one twice, the id names its partition,
    and (partition_id, job_id) is the key of ``jobs``. Who meets a Duplicate there mints again.
    """
    low_bits = _JOB_ID_RANDOM_BITS + _JOB_ID_PARTITION_BITS
    place = partition_id << _JOB_ID_RANDOM_BITS
    random_bits = int.from_bytes(os.urandom(2), "big") >> (16 - _JOB_ID_RANDOM_BITS)
    job_id = (max(0, now_ms - _JOB_ID_EPOCH_MS) << low_bits) | place | random_bits
    newest = _newest_job_id.get(partition_id, -1)
    if job_id <= newest:
        follows = (newest + 1) >> _JOB_ID_RANDOM_BITS == newest >> _JOB_ID_RANDOM_BITS
        job_id = newest + 1 if follows else ((newest >> low_bits) + 1 << low_bits) | place
    _newest_job_id[partition_id] = job_id
    return job_id


def mint_worker_id() -> int:
    """A fresh worker id for every start of an executor: 63 random bits, the last one set."""
    return _random_63_bits() | 1


def mint_door_id() -> int:
    """The same for a process of the API, in whose name function runs are held: the last bit is not set."""
    return max(2, _random_63_bits() & ~1)


def is_door(worker_id: int | None) -> bool:
    """Whether a run's holder is a door: its worker is somewhere else, and learns by its next heartbeat what changed."""
    return worker_id is not None and worker_id % 2 == 0


def _random_63_bits() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1


def job_id_text(job_id: int) -> str:
    """A job id as the API shows it: 16 hexadecimal digits."""
    return f"{job_id:016x}"


def idempotency_key(job_id: int, scheduled_at_ms: int) -> str:
    """The same for every attempt of a run, opaque and without dots (signatures put dots between their parts)."""
    return f"run_{job_id:016x}{scheduled_at_ms:012x}"


def _encode_schedule(schedule: RunAt | Cron) -> dict[str, Any]:
    if isinstance(schedule, RunAt):
        return {"run_at_ms": schedule.run_at_ms}
    return {
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "start_at_ms": schedule.start_at_ms,
        "end_at_ms": schedule.end_at_ms,
    }


def decode_schedule(document: dict[str, Any]) -> RunAt | Cron:
    """The schedule of a stored definition; TypeError or KeyError where it is none."""
    return RunAt(**document) if "run_at_ms" in document else Cron(**document)


def _encode_target(target: HttpTarget | FunctionTarget) -> dict[str, Any]:
    if isinstance(target, FunctionTarget):
        return {"kind": "function", "name": target.name, "payload": target.payload}
    body: Any = None
    if target.body is not None:
        body = target.body.decode() if target.body_is_text else [base64.b64encode(target.body).decode()]
    headers = [[name, value.value, _kind_of(value)] for name, value in target.headers]
    return {"kind": "http", "url": target.url, "method": target.method, "headers": headers, "body": body}


def _kind_of(header: HeaderValue) -> bool | str:
    return f"key {header.sealed_by}" if header.sealed_by else header.secret


def _header(value: str, kind: bool | str) -> HeaderValue:
    return HeaderValue(value, True, kind[4:]) if isinstance(kind, str) else HeaderValue(value, kind)


def _decode_target(document: dict[str, Any]) -> HttpTarget | FunctionTarget:
    kind: Literal["http", "function"] = document["kind"]
    if kind == "function":
        return FunctionTarget(document["name"], document["payload"])
    body, headers = document["body"], document["headers"]
    is_text = not isinstance(body, list)
    return HttpTarget(
        url=document["url"],
        method=document["method"],
        headers=tuple((name, _header(value, kind)) for name, value, kind in headers) if headers else (),
        body=None if body is None else body.encode() if is_text else base64.b64decode(body[0]),
        body_is_text=is_text,
    )
