"""Jobs: create or edit, read, delete, list."""

from __future__ import annotations

from typing import Any

from api.definitions import JobReading, WrittenJob, read_job, show_definition
from api.errors import CONFLICT, Problem, invalid, not_found
from api.requests import Call, check_preconditions
from api.responses import Answer, etag_of
from engine.errors import CallerError
from engine.model import Definition, JobState, job_id_text
from engine.rules.schedule import next_time
from engine.rules.timestamps import format_time
from engine.store.changes import Changed, delete_job, edit_job, wait_obeyed
from engine.store.connection import Duplicate
from engine.store.jobs import JobRow, NewJob
from engine.store.placement import Place

# A PUT that meets another one of the same name looks again at most this often.
ROUNDS_MAX = 10


async def put_job(call: Call) -> Answer:
    """PUT /v1/jobs/{name}: the job is what the body says, whether it was there or not."""
    name = call.name()
    document = await call.json()
    place = call.service.placement.place(call.tenant_id, name)
    for _ in range(ROUNDS_MAX):
        job = await find_job(call, place, name)
        check_preconditions(call.request, etag_of(job.job_id, job.version) if job else None)
        written = read_written(call, document, job)
        answer = await (edit(call, place, job, written) if job else _create(call, place, name, written))
        if answer is not None:
            return answer
    raise Problem(CONFLICT, "the job is being changed by others; try again")


async def get_job(call: Call) -> Answer:
    """GET /v1/jobs/{name}"""
    name = call.name()
    job = await find_job(call, call.service.placement.place(call.tenant_id, name), name)
    if job is None:
        raise not_found("job")
    return job_answer(call, job)


async def delete_job_by_name(call: Call) -> Answer:
    """DELETE /v1/jobs/{name}: the job as it was, and 404 from then on."""
    name = call.name()
    place = call.service.placement.place(call.tenant_id, name)
    for _ in range(ROUNDS_MAX):
        job = await find_job(call, place, name)
        check_preconditions(call.request, etag_of(job.job_id, job.version) if job else None)
        if job is None:
            raise not_found("job")
        changed = await delete_job(place.shard, job, call.service.windows)
        if changed is not None:
            await wait_obeyed(place.shard, changed.signalled)
            return Answer(show_job(call, job))
    raise Problem(CONFLICT, "the job is being changed by others; try again")


async def find_job(call: Call, place: Place, name: str) -> JobRow | None:
    """The tenant's living job of this name."""
    return await call.service.find_job(place.shard, call.tenant_id, name)


def read_written(call: Call, document: Any, stored: JobRow | None) -> WrittenJob:
    """The body read beside what is stored; 422 with every fault."""
    reading = JobReading(
        call.now_ms,
        stored=Definition.decode(stored.definition) if stored else None,
        fingerprint=call.service.fingerprint(call.tenant_id),
        judge_url=call.service.guard.judge_url,
    )
    written = read_job(document, reading)
    if written is None:
        raise invalid(reading.faults)
    return written


def job_answer(call: Call, job: JobRow, status: int = 200, **more: Any) -> Answer:
    """The job with its ETag."""
    return Answer(show_job(call, job) | more, status, {"ETag": etag_of(job.job_id, job.version)})


def show_job(call: Call, job: JobRow) -> dict[str, Any]:
    """The job as it is answered, now."""
    definition = Definition.decode(job.definition)
    next_ms = _next_run_at(job, definition, call.now_ms)
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


async def _create(call: Call, place: Place, name: str, written: WrittenJob) -> Answer | None:
    """201, or None if another has created it meanwhile."""
    new = NewJob(call.tenant_id, name, place.partition_id, written.definition, bool(written.paused))
    try:
        job = await call.service.create_job(place.shard, new)
    except Duplicate:
        return None
    return job_answer(call, job, 201, effective_from=_time_or_none(job.next_run_at_ms))


async def edit(call: Call, place: Place, job: JobRow, written: WrittenJob) -> Answer | None:
    """200, or None if another has changed it meanwhile. What is equal is not written."""
    paused = written.paused
    if written.definition.encode() == job.definition and paused in (None, job.state == JobState.PAUSED):
        return job_answer(call, job, effective_from=_time_or_none(next_run_at(job, call.now_ms)))
    changed = await edit_job(place.shard, job, written.definition, paused, call.service.windows)
    return None if changed is None else await changed_answer(call, place, changed)


async def changed_answer(call: Call, place: Place, changed: Changed) -> Answer:
    """The job after a change, once those who hold its runs have obeyed."""
    await wait_obeyed(place.shard, changed.signalled)
    return job_answer(call, changed.job, effective_from=_time_or_none(changed.effective_from_ms))


def next_run_at(job: JobRow, now_ms: int) -> int | None:
    """The first scheduled time to come; None where nothing is called."""
    return _next_run_at(job, Definition.decode(job.definition), now_ms)


def _next_run_at(job: JobRow, definition: Definition, now_ms: int) -> int | None:
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


def _time_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)
