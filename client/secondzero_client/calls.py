"""Every call of the API, once for both clients: a function that says what is sent.

A method of ``Client`` takes the arguments of the function here and returns what the ``Request`` is of; the same method
of ``AsyncClient`` returns it to ``await``. The names are the operation ids of the OpenAPI document.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from secondzero_client.requests import MERGE_PATCH_JSON, Answer, Listing, Request, read_json
from secondzero_client.shapes import (
    Acted,
    BatchPut,
    BatchResults,
    CronPreview,
    DeadLetter,
    Forecast,
    Job,
    JobClockChanges,
    JobState,
    JobStats,
    Live,
    MissedRuns,
    Ready,
    Run,
    RunState,
    RunWithAttempts,
    SigningSecrets,
    Usage,
    WorkClaimed,
    WorkEnds,
    WorkRenewed,
)

Time = str | datetime
"""RFC 3339, or a datetime with its zone."""


def put_job(name: str, job: Job, *, if_match: str | None = None, if_none_match: str | None = None) -> Request[Job]:
    """Create or edit a job. ``if_none_match="*"``: only if there is none yet; ``if_match=etag(job)``: only that one."""
    return _conditional("PUT", name, if_match, if_none_match, body=job)


def get_job(name: str) -> Request[Job]:
    """Read a job."""
    return Request("GET", _job(name))


def patch_job(
    name: str, patch: Mapping[str, Any], *, if_match: str | None = None, if_none_match: str | None = None
) -> Request[Job]:
    """Change parts of a job by a merge patch (RFC 7396): what is named is replaced, None takes the default again."""
    return _conditional("PATCH", name, if_match, if_none_match, body=patch, media_type=MERGE_PATCH_JSON)


def delete_job(name: str, *, if_match: str | None = None, if_none_match: str | None = None) -> Request[Job | None]:
    """Delete a job; returns it as it was. None if a try whose answer was lost has deleted it."""
    return _conditional("DELETE", name, if_match, if_none_match, gone=True)


def list_jobs(
    *,
    state: JobState | None = None,
    label: str | Sequence[str] = (),
    name_prefix: str | None = None,
    next_run_before: Time | None = None,
    page_size: int | None = None,
) -> Listing[Job]:
    """Jobs in name order. ``label``: "team:billing", or several that must all hold."""
    labels = [label] if isinstance(label, str) else list(label)
    filters = {"state": state, "label": labels, "name_prefix": name_prefix, "next_run_before": _time(next_run_before)}
    return _listing("/v1/jobs", "jobs", page_size, filters)


def batch_jobs(
    *, puts: Sequence[BatchPut] = (), deletes: Sequence[str] = (), idempotency_key: str | None = None
) -> Request[BatchResults]:
    """Put and delete up to 1,000 jobs; each is answered like a call of its own, in the order given."""
    return _post("/v1/jobs:batch", {"puts": list(puts), "deletes": list(deletes)}, idempotency_key)


def pause_job(name: str, *, note: str | None = None, idempotency_key: str | None = None) -> Request[Job]:
    """Pause a job: reaches every run that has not started, within a second."""
    return _post(f"{_job(name)}:pause", _given(note=note), idempotency_key)


def resume_job(name: str, *, missed_runs: MissedRuns | None = None, idempotency_key: str | None = None) -> Request[Job]:
    """Resume a job; ``missed_runs`` decides for this once what becomes of the times inside the pause."""
    return _post(f"{_job(name)}:resume", _given(missed_runs=missed_runs), idempotency_key)


def run_job(name: str, *, idempotency_key: str | None = None) -> Request[Run]:
    """Start a run now, also of a paused or finished job."""
    return _post(f"{_job(name)}:run", {}, idempotency_key)


def list_runs(
    name: str,
    *,
    state: RunState | None = None,
    scheduled_from: Time | None = None,
    scheduled_to: Time | None = None,
    page_size: int | None = None,
) -> Listing[Run]:
    """A job's runs, newest first; also of a deleted name, while its history lasts."""
    filters = {"state": state, "scheduled_from": _time(scheduled_from), "scheduled_to": _time(scheduled_to)}
    return _listing(f"{_job(name)}/runs", "runs", page_size, filters)


def get_run(name: str, scheduled_at: Time) -> Request[RunWithAttempts]:
    """Read a run with its attempts."""
    return Request("GET", _run(name, scheduled_at))


def get_job_stats(name: str) -> Request[JobStats]:
    """How a job's runs of the last hour, day and 30 days ended, with lag and duration."""
    return Request("GET", f"{_job(name)}/stats")


def cancel_run(name: str, scheduled_at: Time, *, idempotency_key: str | None = None) -> Request[Run]:
    """Cancel a run: a pending one does not start later than a second from now, one in progress is stopped."""
    return _post(f"{_run(name, scheduled_at)}:cancel", {}, idempotency_key)


def retry_run(name: str, scheduled_at: Time, *, idempotency_key: str | None = None) -> Request[Run]:
    """Retry a dead letter: the same run with the same version and key; its tries start again."""
    return _post(f"{_run(name, scheduled_at)}:retry", {}, idempotency_key)


def list_dead_letters(
    *,
    job: str | None = None,
    name_prefix: str | None = None,
    scheduled_from: Time | None = None,
    scheduled_to: Time | None = None,
    page_size: int | None = None,
) -> Listing[DeadLetter]:
    """Runs that have failed for good, newest first."""
    filters = _letters(job, name_prefix, scheduled_from, scheduled_to)
    return _listing("/v1/dead-letters", "dead_letters", page_size, filters)


def retry_dead_letters(
    *,
    job: str | None = None,
    name_prefix: str | None = None,
    scheduled_from: Time | None = None,
    scheduled_to: Time | None = None,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Request[Acted]:
    """Retry what the filter finds, up to 1,000; ``more`` says whether to call again."""
    filters = _letters(job, name_prefix, scheduled_from, scheduled_to)
    return _post("/v1/dead-letters:retry", {**filters, "dry_run": dry_run}, idempotency_key)


def delete_dead_letters(
    *,
    job: str | None = None,
    name_prefix: str | None = None,
    scheduled_from: Time | None = None,
    scheduled_to: Time | None = None,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Request[Acted]:
    """Forget what the filter finds, up to 1,000; ``more`` says whether to call again."""
    filters = _letters(job, name_prefix, scheduled_from, scheduled_to)
    return _post("/v1/dead-letters:delete", {**filters, "dry_run": dry_run}, idempotency_key)


def preview_cron(
    cron: str, *, time_zone: str | None = None, after: Time | None = None, n: int | None = None
) -> Request[CronPreview]:
    """The next times of an expression, clock changes marked, and a sentence that describes it."""
    return Request("POST", "/v1/cron:preview", body=_given(cron=cron, time_zone=time_zone, after=_time(after), n=n))


def list_clock_changes(*, within: str | None = None, page_size: int | None = None) -> Listing[JobClockChanges]:
    """Jobs that meet a clock change; ``within`` is an ISO 8601 duration such as "P6M"."""
    return _listing("/v1/clock-changes", "jobs", page_size, {"within": within})


def get_forecast() -> Request[Forecast]:
    """The coming hour, second by second."""
    return Request("GET", "/v1/forecast")


def get_usage() -> Request[Usage]:
    """Limits and what is used."""
    return Request("GET", "/v1/usage")


def list_signing_secrets() -> Request[SigningSecrets]:
    """What calls are signed with, the newest first. Full keys only."""
    return Request("GET", "/v1/signing-secrets")


def rotate_signing_secret(
    *, keep_old_for: str | None = None, idempotency_key: str | None = None
) -> Request[SigningSecrets]:
    """A new signing secret; the old ones sign beside it for a while. Full keys only."""
    return _post("/v1/signing-secrets:rotate", _given(keep_old_for=keep_old_for), idempotency_key)


def claim_work(functions: Sequence[str], *, max: int = 1, wait: str | None = None) -> Request[WorkClaimed]:
    """Claim runs of these functions, up to ``max``, waiting up to ``wait`` ("20s") for the first.

    Whoever has claimed a run says so by heartbeats, or it is given to another. (``Worker`` does all this.)
    """
    return Request(
        "POST", "/v1/work:claim", body=_given(functions=list(functions), max=max, wait=wait), repeatable=False
    )


def heartbeat_work(token: str, *, progress: int | None = None, note: str | None = None) -> Request[WorkRenewed]:
    """Keep a claimed run, tell how far it is (0 to 100), and hear whether to stop. Conflict: it is no longer ours."""
    return _work(token, "heartbeat", _given(progress=progress, note=note))


def complete_work(token: str, result: Any = None) -> Request[Run]:
    """The run has succeeded. Conflict: it is no longer ours."""
    return _work(token, "complete", {"result": result})


def complete_works(completed: Sequence[tuple[str, Any]]) -> Request[WorkEnds]:
    """Several runs have succeeded: (token, result) of each, answered in their order. 200 says nothing of the single
    ones: each has its own status, 409 where it is no longer ours."""
    runs = [{"token": token, "result": result} for token, result in completed]
    return Request("POST", "/v1/work:complete", body={"runs": runs})


def fail_work(token: str, error: str, *, retryable: bool = True, retry_after: str | None = None) -> Request[Run]:
    """The attempt has failed; ``retry_after`` ("5m"): the next one not before that."""
    return _work(token, "fail", _given(error=error, retryable=retryable, retry_after=retry_after))


def release_work(token: str, *, started: bool) -> Request[Run]:
    """Give a claimed run back. One that was not started has not been tried."""
    return _work(token, "release", {"started": started})


def get_livez() -> Request[Live]:
    """Whether the process lives."""
    return Request("GET", "/livez")


def get_readyz() -> Request[Ready]:
    """Whether every shard answers; asked once, "not ready" is an answer."""
    return Request("GET", "/readyz", repeatable=False, reads=_read_ready)


def etag(job: Job) -> str:
    """The ETag of a job as it was answered, for ``if_match``."""
    return f'"{job["job_id"]}.{job["version"]}"'


def _conditional(method: str, name: str, if_match: str | None, if_none_match: str | None, **more: Any) -> Request[Any]:
    """A condition that held for a try whose answer was lost need not hold for the next: those are not sent again."""
    headers = _given(**{"If-Match": if_match, "If-None-Match": if_none_match})
    return Request(method, _job(name), headers=headers, repeatable=not headers, **more)


def _post(path: str, body: Mapping[str, Any], idempotency_key: str | None) -> Request[Any]:
    """With a key of its own, so that it may be sent again."""
    headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Request("POST", path, body=body, headers=headers)


def _work(token: str, verb: str, body: Mapping[str, Any]) -> Request[Any]:
    """May be sent again: the token's run and attempt are the fence."""
    return Request("POST", f"/v1/work/{quote(token, safe='')}:{verb}", body=body)


def _listing(path: str, key: str, page_size: int | None, filters: Mapping[str, Any]) -> Listing[Any]:
    return Listing(Request("GET", path, query={**filters, "page_size": page_size}), key)


def _letters(job: str | None, prefix: str | None, since: Time | None, until: Time | None) -> dict[str, Any]:
    return _given(job=job, name_prefix=prefix, scheduled_from=_time(since), scheduled_to=_time(until))


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _job(name: str) -> str:
    return f"/v1/jobs/{quote(name, safe='')}"


def _run(name: str, scheduled_at: Time) -> str:
    return f"{_job(name)}/runs/{_time(scheduled_at)}"


def _time(value: Time | None) -> str | None:
    """RFC 3339 in UTC, with milliseconds only where there are some. ValueError for a datetime without a zone."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone: for example datetime.now(timezone.utc)")
    utc = value.astimezone(timezone.utc).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond >= 1_000 else "seconds") + "Z"


def _read_ready(answer: Answer) -> Any:
    return read_json(Answer(200, answer.headers, answer.body) if answer.status == 503 else answer)
