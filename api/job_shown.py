"""A job as it is answered: what is stored, and what follows from it now."""

from __future__ import annotations

from typing import Any

from api.clock_changes import months_after, show_clock_changes
from api.definitions import show_definition
from api.requests import Call
from api.responses import Answer, etag_of
from engine.errors import CallerError
from engine.model import Definition, JobState, job_id_text
from engine.rules.schedule import next_time
from engine.rules.timestamps import format_time
from engine.store.jobs import JobRow

# How far ahead the answer to a PUT tells of clock changes.
CLOCK_CHANGES_MONTHS = 12


def job_answer(call: Call, job: JobRow) -> Answer:
    """The job with its ETag."""
    return Answer(show_job(call, job), headers={"ETag": etag_of(job.job_id, job.version)})


def written_answer(
    call: Call, job: JobRow, definition: Definition, status: int, effective_from_ms: int | None
) -> Answer:
    """What a PUT and a PATCH answer: the job, its first run with this version, and the clock changes it meets."""
    until_ms = months_after(call.now_ms, CLOCK_CHANGES_MONTHS)
    shown = show_job(call, job, definition)
    shown["effective_from"] = None if effective_from_ms is None else format_time(effective_from_ms)
    shown["clock_changes"] = show_clock_changes(definition.schedule, call.now_ms, until_ms)
    return Answer(shown, status, {"ETag": etag_of(job.job_id, job.version)})


def show_job(call: Call, job: JobRow, definition: Definition | None = None) -> dict[str, Any]:
    """The job as it is answered, now; ``definition`` spares decoding it where it is at hand."""
    definition = definition or Definition.salvage(job.definition)
    next_ms = next_run_at(job, definition, call.now_ms)
    shown: dict[str, Any] = {"name": job.name, "job_id": job_id_text(job.job_id), "version": job.version}
    shown["state"] = _state(job, next_ms)
    if job.note:
        shown["note"] = job.note
    shown |= show_definition(definition, call.service.fingerprint(call.tenant_id))
    shown["paused"] = job.state == JobState.PAUSED
    shown["next_run_at"] = None if next_ms is None else format_time(next_ms)
    shown["created_at"] = format_time(job.created_at_ms)
    shown["updated_at"] = format_time(job.updated_at_ms)
    return shown


def next_run_at(job: JobRow, definition: Definition, now_ms: int) -> int | None:
    """The first scheduled time to come; None where nothing is called."""
    if job.state != JobState.ACTIVE:
        return None
    try:
        return next_time(definition.schedule, now_ms)
    except CallerError:  # a zone that is gone: the planner sets the job aside, and it is answered all the same
        return None


def _state(job: JobRow, next_ms: int | None) -> str:
    """A job is finished when its last time has come and nothing is left to be planned."""
    if job.state == JobState.ACTIVE and job.next_run_at_ms is None and next_ms is None:
        return "finished"
    return job.state.name.lower()
