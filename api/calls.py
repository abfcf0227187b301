"""What the OpenAPI document says of each call of the URL table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api import batch, clock_change_list, cron_preview, dead_letters, job_list, job_verbs, runs, signing_secrets, work
from api.definitions import JOB
from api.errors import CONFLICT, INVALID, NOT_FOUND, PRECONDITION_FAILED, Kind
from api.job_patch import MERGE_PATCH_JSON
from api.records import Record
from api.responses import JSON


@dataclass(frozen=True, slots=True)
class Doc:
    """What the document says of one call: ``name`` is what generated clients call it; ``answers`` has each status of
    success with the name of its schema."""

    name: str
    summary: str
    tag: str
    answers: Mapping[int, str]
    says: str = ""
    query: Record | None = None
    body: Record | None = None
    body_required: bool = False
    body_media: str = JSON
    example: Any = None
    headers: tuple[str, ...] = ()
    problems: tuple[Kind, ...] = ()
    open: bool = False


_ENTITY = (NOT_FOUND, INVALID)
_IF = ("If-Match", "If-None-Match")
ONCE = ("Idempotency-Key",)

JOB_EXAMPLE = {
    "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Europe/Paris"},
    "target": {
        "http": {
            "url": "https://example.com/hooks/report",
            "headers": {"Content-Type": "application/json", "X-Api-Key": {"value": "s3cret", "secret": True}},
            "body": '{"report": "daily"}',
        }
    },
    "labels": {"team": "billing"},
}

CALLS: dict[tuple[str, str], Doc] = {
    ("PUT", "/v1/jobs/{name}"): Doc(
        "put_job",
        "Create or edit a job",
        "Jobs",
        {200: "Job", 201: "Job"},
        "The job becomes what the body says; absent fields take their defaults, except `paused`, which stays as it is."
        " An equal PUT changes nothing, whatever the time is now. `effective_from` says from which run on it holds:"
        " runs due within 30 seconds keep the version they were planned with.",
        body=JOB,
        body_required=True,
        example=JOB_EXAMPLE,
        headers=_IF,
        problems=(PRECONDITION_FAILED, CONFLICT),
    ),
    ("GET", "/v1/jobs/{name}"): Doc("get_job", "Read a job", "Jobs", {200: "Job"}, problems=_ENTITY),
    ("PATCH", "/v1/jobs/{name}"): Doc(
        "patch_job",
        "Change parts of a job",
        "Jobs",
        {200: "Job"},
        "A merge patch (RFC 7396): what is named is replaced, null takes the default again. A `schedule` or `target` of"
        " another kind replaces the whole object.",
        body=JOB,
        body_required=True,
        body_media=MERGE_PATCH_JSON,
        example={"timeout": "10s", "labels": {"team": None}},
        headers=_IF,
        problems=(NOT_FOUND, PRECONDITION_FAILED, CONFLICT),
    ),
    ("DELETE", "/v1/jobs/{name}"): Doc(
        "delete_job",
        "Delete a job",
        "Jobs",
        {200: "Job"},
        "Answers the job as it was, with the state `deleted`. What is already due is recorded as skipped; the history"
        " stays readable.",
        headers=_IF,
        problems=(*_ENTITY, PRECONDITION_FAILED, CONFLICT),
    ),
    ("GET", "/v1/jobs"): Doc(
        "list_jobs", "List jobs", "Jobs", {200: "JobPage"}, "In name order.", job_list.QUERY, problems=(INVALID,)
    ),
    ("POST", "/v1/jobs:batch"): Doc(
        "batch_jobs",
        "Put and delete many jobs",
        "Jobs",
        {200: "BatchResults"},
        "Each item is carried out and answered like a call of its own, in the order given.",
        body=batch.BATCH,
        body_required=True,
        example={"puts": [{"name": "nightly-report", "job": JOB_EXAMPLE}], "deletes": ["old-report"]},
        headers=ONCE,
    ),
    ("POST", "/v1/jobs/{name}:pause"): Doc(
        "pause_job",
        "Pause a job",
        "Jobs",
        {200: "Job"},
        "Reaches every run that has not started, within a second of the answer.",
        body=job_verbs.PAUSE,
        example={"note": "until the migration is done"},
        headers=ONCE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/jobs/{name}:resume"): Doc(
        "resume_job",
        "Resume a job",
        "Jobs",
        {200: "Job"},
        "The job's `missed_runs` decides what becomes of the times inside the pause.",
        body=job_verbs.RESUME,
        example={"missed_runs": "skip"},
        headers=ONCE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/jobs/{name}:run"): Doc(
        "run_job",
        "Start a run now",
        "Jobs",
        {200: "Run"},
        "Also of a paused or finished job; obeys `overlap`.",
        body=job_verbs.NOTHING,
        headers=ONCE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("GET", "/v1/jobs/{name}/stats"): Doc(
        "get_job_stats",
        "How a job's runs ended, how late and how long they were",
        "Runs",
        {200: "JobStats"},
        "Of the runs that were scheduled in the last hour, day and 30 days and have ended. The longer spans begin with"
        " a full hour. Times that were skipped without a run of their own (missed, paused) are not counted.",
        problems=_ENTITY,
    ),
    ("GET", "/v1/jobs/{name}/runs"): Doc(
        "list_runs",
        "List a job's runs",
        "Runs",
        {200: "RunPage"},
        "Newest first, live ones and history in one list; also of a deleted name, while its history lasts.",
        runs.QUERY,
        problems=_ENTITY,
    ),
    ("GET", "/v1/jobs/{name}/runs/{scheduled_at}"): Doc(
        "get_run", "Read a run with its attempts", "Runs", {200: "RunWithAttempts"}, problems=_ENTITY
    ),
    ("POST", "/v1/jobs/{name}/runs/{scheduled_at}:cancel"): Doc(
        "cancel_run",
        "Cancel a run",
        "Runs",
        {202: "Run"},
        "A pending run does not start later than a second after the answer; one in progress is stopped.",
        body=job_verbs.NOTHING,
        headers=ONCE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/jobs/{name}/runs/{scheduled_at}:retry"): Doc(
        "retry_run",
        "Retry a dead letter",
        "Runs",
        {202: "Run"},
        "The same run with the same version and `Idempotency-Key`; its tries start again.",
        body=job_verbs.NOTHING,
        headers=ONCE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("GET", "/v1/dead-letters"): Doc(
        "list_dead_letters",
        "List runs that have failed for good",
        "Dead letters",
        {200: "DeadLetterPage"},
        "Newest first, kept 14 days.",
        dead_letters.QUERY,
        problems=(INVALID,),
    ),
    ("POST", "/v1/dead-letters:retry"): Doc(
        "retry_dead_letters",
        "Retry dead letters by filter",
        "Dead letters",
        {200: "Acted"},
        body=dead_letters.ACTION,
        example={"job": "nightly-report", "dry_run": True},
        headers=ONCE,
    ),
    ("POST", "/v1/dead-letters:delete"): Doc(
        "delete_dead_letters",
        "Forget dead letters by filter",
        "Dead letters",
        {200: "Acted"},
        body=dead_letters.ACTION,
        example={"scheduled_to": "2030-01-31T00:00:00Z"},
        headers=ONCE,
    ),
    ("POST", "/v1/cron:preview"): Doc(
        "preview_cron",
        "The next times of a cron expression",
        "Time",
        {200: "CronPreview"},
        body=cron_preview.PREVIEW,
        body_required=True,
        example={"cron": "30 2 * * *", "time_zone": "America/New_York", "n": 3},
    ),
    ("GET", "/v1/clock-changes"): Doc(
        "list_clock_changes",
        "Jobs that meet a clock change",
        "Time",
        {200: "ClockChangePage"},
        "What will happen to each at the changes to and from daylight saving.",
        clock_change_list.QUERY,
        problems=(INVALID,),
    ),
    ("GET", "/v1/forecast"): Doc(
        "get_forecast", "The coming hour, second by second", "Time", {200: "Forecast"}, problems=(INVALID,)
    ),
    ("GET", "/v1/usage"): Doc(
        "get_usage",
        "Limits and what is used",
        "Account",
        {200: "Usage"},
        "And how the runs of all jobs ended, by full hours, to a few minutes ago; what ended late is counted later. "
        "The starts a second in use are their mean since the last full hour began.",
        problems=(INVALID,),
    ),
    ("GET", "/v1/signing-secrets"): Doc(
        "list_signing_secrets",
        "What calls are signed with",
        "Account",
        {200: "SigningSecrets"},
        "Calls carry Standard Webhooks signatures. Full keys only.",
        problems=(INVALID,),
    ),
    ("POST", "/v1/signing-secrets:rotate"): Doc(
        "rotate_signing_secret",
        "A new signing secret",
        "Account",
        {200: "SigningSecrets"},
        "The old ones sign beside it for a while. Full keys only.",
        body=signing_secrets.ROTATE,
        example={"keep_old_for": "24h"},
        headers=ONCE,
    ),
    ("POST", "/v1/work:claim"): Doc(
        "claim_work",
        "Claim function runs",
        "Work",
        {200: "WorkClaimed"},
        "For a worker: due runs of its functions, by priority. Each is its worker's until it is completed, failed or"
        " released, or until three heartbeats are missed. With `wait`, an answer without runs comes only after it."
        " A key of scope `worker:…` may claim the functions it names.",
        body=work.CLAIM,
        body_required=True,
        example={"functions": ["reports.daily"], "max": 5},
    ),
    ("POST", "/v1/work:complete"): Doc(
        "complete_works",
        "End several runs well",
        "Work",
        {200: "WorkEnds"},
        "What ends at the same moment, in one call. Each run has an answer of its own: one that is another's by now"
        " changes nothing for the rest. Said again, all is answered as before.",
        body=work.COMPLETE_SOME,
        body_required=True,
    ),
    ("POST", "/v1/work/{token}:heartbeat"): Doc(
        "heartbeat_work",
        "Say that a run is being worked on",
        "Work",
        {200: "WorkRenewed"},
        "Once every `heartbeat_interval`, however busy the code is. `stop` says that the run was cancelled or that its"
        " time is over: it ends within ten seconds whatever the worker does. 409: the run is another's, stop at once.",
        body=work.HEARTBEAT,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/work/{token}:complete"): Doc(
        "complete_work",
        "End a run well",
        "Work",
        {200: "Run"},
        "Said again, it is answered as before. 409 where the run is another's: nothing is changed.",
        body=work.COMPLETE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/work/{token}:fail"): Doc(
        "fail_work",
        "End a try of a run",
        "Work",
        {200: "Run"},
        "It is tried again as its job says, unless `retryable` is false.",
        body=work.FAIL,
        body_required=True,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("POST", "/v1/work/{token}:release"): Doc(
        "release_work",
        "Give a run back",
        "Work",
        {200: "Run"},
        "Another worker gets it at once. It was a try, unless `started` is false.",
        body=work.RELEASE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("GET", "/livez"): Doc("get_livez", "Whether the process lives", "Health", {200: "Live"}, open=True),
    ("GET", "/readyz"): Doc(
        "get_readyz",
        "Whether every shard answers",
        "Health",
        {200: "Ready", 503: "Ready"},
        "Says which is away.",
        open=True,
    ),
}
