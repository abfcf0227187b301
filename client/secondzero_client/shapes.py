"""What the API takes and answers, as the types of its JSON. Times are RFC 3339 in UTC, durations like "30s".

A key that is not always there stands in the second, partial half of its shape.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Priority = Literal["critical", "high", "normal", "low"]
MissedRuns = Literal["latest", "all", "skip"]
Overlap = Literal["allow", "skip", "wait"]
JobState = Literal["active", "paused", "finished", "invalid"]
RunState = Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped"]


class RunAt(TypedDict):
    """Once."""

    run_at: str


class _Cron(TypedDict):
    cron: str


class Cron(_Cron, total=False):
    """Again and again, by a cron expression in a time zone."""

    time_zone: str
    start_at: str
    end_at: str


class _SecretHeader(TypedDict):
    secret: bool


class SecretHeader(_SecretHeader, total=False):
    """A header whose value is written and never read; ``fingerprint`` keeps the stored value."""

    value: str
    fingerprint: str


class _HttpTarget(TypedDict):
    url: str


class HttpTarget(_HttpTarget, total=False):
    """An HTTP call."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    headers: dict[str, str | SecretHeader]
    body: str
    body_base64: str


class _FunctionTarget(TypedDict):
    name: str


class FunctionTarget(_FunctionTarget, total=False):
    """A function on one of the tenant's own workers."""

    payload: Any


class TargetHttp(TypedDict):
    http: HttpTarget


class TargetFunction(TypedDict):
    function: FunctionTarget


class Retry(TypedDict, total=False):
    """Pauses are drawn at random from zero to the doubling bound."""

    max_attempts: int
    backoff: str
    max_backoff: str
    max_age: str


class OnFailure(TypedDict):
    url: str


class ClockChange(TypedDict):
    """A clock change that a job meets."""

    at: str
    local_before: str
    local_after: str
    effect: str
    times: int
    detail: str


class _Job(TypedDict):
    schedule: RunAt | Cron
    target: TargetHttp | TargetFunction


class Job(_Job, total=False):
    """A schedule and what is called at its times. What stands after ``description`` is only answered."""

    priority: Priority
    timeout: str
    retry: Retry
    missed_runs: MissedRuns
    max_catch_up: int
    overlap: Overlap
    on_failure: OnFailure
    late_after: str
    labels: dict[str, str]
    paused: bool
    description: str
    name: str
    job_id: str
    version: int
    state: JobState
    note: str
    next_run_at: str | None
    created_at: str
    updated_at: str
    effective_from: str | None
    clock_changes: list[ClockChange]


class _Run(TypedDict):
    job: str
    job_id: str
    scheduled_at: str
    state: RunState
    reason: str | None
    trigger: Literal["schedule", "catch_up", "manual"]
    started_at: str | None
    finished_at: str | None
    lag_ms: int | None
    attempts: int
    outcome: str | None
    status_code: int | None
    job_version: int


class Run(_Run, total=False):
    """One scheduled time of a job, one start by hand, or a range of skipped times, which stands at its last one."""

    clock_change: str
    skipped_from: str
    skipped: int


class Attempt(TypedDict):
    """One attempt that has ended; ``answer`` is the beginning of what was answered."""

    attempt: int
    started_at: str | None
    finished_at: str
    outcome: str | None
    status_code: int | None
    detail: str | None
    answer: str | None


class _RunWithAttempts(Run):
    attempt_list: list[Attempt]


class RunWithAttempts(_RunWithAttempts, total=False):
    """Also what a function run's worker says, or why a due run does not begin (``waiting``)."""

    function: str
    progress: int | None
    note: str | None
    result: Any
    waiting: str


class DeadLetter(Run):
    """A run that has failed for good."""

    died_at: str


class Acted(TypedDict):
    """How many dead letters; ``more``: whether to call again."""

    count: int
    more: bool


class BatchPut(TypedDict):
    name: str
    job: Job


class _BatchResult(TypedDict):
    name: str
    status: int


class BatchResult(_BatchResult, total=False):
    """What became of one item: the job, or an RFC 9457 problem."""

    job: Job
    problem: dict[str, Any]


class BatchResults(TypedDict):
    results: list[BatchResult]


class CronTime(TypedDict):
    time: str
    local: str
    clock_change: str | None


class CronPreview(TypedDict):
    description: str
    times: list[CronTime]


class JobClockChanges(TypedDict):
    name: str
    clock_changes: list[ClockChange]


class ForecastSecond(TypedDict):
    second: str
    runs: int


Forecast = TypedDict(
    "Forecast", {"from": str, "to": str, "runs": int, "complete": bool, "seconds": list[ForecastSecond]}
)


class MeanAndMax(TypedDict):
    mean: float
    max: int


Stats = TypedDict(
    "Stats",
    {
        "from": str,
        "to": str,
        "runs": dict[str, int],
        "lag_ms": MeanAndMax | None,
        "duration_ms": MeanAndMax | None,
        "complete": bool,
    },
)


class Periods(TypedDict):
    last_hour: Stats
    last_day: Stats
    last_30_days: Stats


class JobStats(Periods):
    """How the runs of a job ended."""

    job: str


class Usage(TypedDict):
    limits: dict[str, int]
    used: dict[str, int]
    runs: Periods


class SigningSecret(TypedDict):
    secret: str
    created_at: str
    retires_at: str | None


class SigningSecrets(TypedDict):
    signing_secrets: list[SigningSecret]


class Live(TypedDict):
    live: bool


class Away(TypedDict):
    shard: int
    problem: str


class Ready(TypedDict):
    """Whether every shard answers, and which does not."""

    ready: bool
    shards: int
    away: list[Away]


class Work(TypedDict):
    """A run that is ours while its heartbeats come. ``deadline`` is the service's time."""

    token: str
    function: str
    payload: Any
    job: str
    job_id: str
    scheduled_at: str
    attempt: int
    idempotency_key: str
    deadline: str
    heartbeat_interval: str
    trigger: str


class WorkClaimed(TypedDict):
    runs: list[Work]


class _WorkEnd(TypedDict):
    status: int


class WorkEnd(_WorkEnd, total=False):
    """One of several: the run as it has ended, or why nothing was changed."""

    run: Run
    problem: dict[str, Any]


class WorkEnds(TypedDict):
    results: list[WorkEnd]


class WorkRenewed(TypedDict):
    """``stop``: false, or why to stop: "cancelled" or "deadline"."""

    stop: str | bool
    lease_until: str
