"""Jobs: create or edit, read, delete, list."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from api.definitions import WrittenJob, read_job
from api.errors import CONFLICT, Problem, invalid, not_found
from api.idempotency import keeping
from api.job_reading import JobReading
from api.job_shown import job_answer, next_run_at, show_job, written_answer
from api.limits import JOBS_LIMIT, limits_of
from api.requests import Call, check_preconditions
from api.responses import Answer, etag_of
from engine.model import Definition, JobState
from engine.store.changes import Changed, delete_job, edit_job, wait_obeyed
from engine.store.connection import Duplicate
from engine.store.jobs import JobRow, NewJob
from engine.store.placement import Place
from engine.store.requests import Once

# A PUT that meets another one of the same name looks again at most this often.
ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms a job is put or deleted: preconditions, an answer to keep on record, and a lane to wait in."""

    check: Callable[[JobRow | None], None] = lambda job: None
    asked: Once | None = None
    lane: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)


async def put_job(call: Call) -> Answer:
    """PUT /v1/jobs/{name}: the job is what the body says, whether it was there or not."""
    name = call.name()
    return await put_one(call, name, await call.json(), _preconditions(call))


async def get_job(call: Call) -> Answer:
    """GET /v1/jobs/{name}"""
    name = call.name()
    job = await find_job(call, call.service.placement.place(call.tenant_id, name), name)
    if job is None:
        raise not_found("job")
    return job_answer(call, job)


async def delete_job_by_name(call: Call) -> Answer:
    """DELETE /v1/jobs/{name}: the job as it was, now deleted, and 404 from then on."""
    return await delete_one(call, call.name(), _preconditions(call))


async def put_one(call: Call, name: str, document: Any, terms: Terms) -> Answer:
    """Create or edit one job; what is equal is not written."""
    place = call.service.placement.place(call.tenant_id, name)
    for _ in range(ROUNDS_MAX):
        job = await find_job(call, place, name)
        terms.check(job)
        written = read_written(call, document, job)
        if job is None:
            answer = await _create(call, place, name, written, terms)
        else:
            answer = await edit(call, place, job, written, terms)
        if answer is not None:
            return answer
    raise busy()


async def delete_one(call: Call, name: str, terms: Terms) -> Answer:
    """Delete one job; 404 if there is none."""
    place = call.service.placement.place(call.tenant_id, name)
    for _ in range(ROUNDS_MAX):
        job = await find_job(call, place, name)
        terms.check(job)
        if job is None:
            raise not_found("job")
        answer = Answer(show_job(call, job) | {"state": "deleted", "next_run_at": None})
        finish = keeping(place.shard, terms.asked, partial(_always, answer))
        async with terms.lane:
            changed = await delete_job(place.shard, job, call.service.windows, finish)
        if changed is not None:
            await wait_obeyed(place.shard, changed.signalled)
            return answer
    raise busy()


def _always(answer: Answer, changed: Changed) -> Answer:
    return answer


def busy() -> Problem:
    """The job was changed by others in every round."""
    return Problem(CONFLICT, "the job is being changed by others; try again")


def _preconditions(call: Call) -> Terms:
    return Terms(lambda job: check_preconditions(call.request, etag_of(job.job_id, job.version) if job else None))


async def find_job(call: Call, place: Place, name: str) -> JobRow | None:
    """The tenant's living job of this name."""
    return await call.service.find_job(place.shard, call.tenant_id, name)


def read_written(call: Call, document: Any, stored: JobRow | None) -> WrittenJob:
    """The body read beside what is stored; 422 with every fault."""
    reading = JobReading(
        call.now_ms,
        stored=Definition.salvage(stored.definition) if stored else None,
        fingerprint=call.service.fingerprint(call.tenant_id),
        judge_url=call.service.guard.judge_url,
    )
    written = read_job(document, reading)
    if written is None:
        raise invalid(reading.faults)
    return written


async def _create(call: Call, place: Place, name: str, written: WrittenJob, terms: Terms) -> Answer | None:
    """201, or None if another has created it meanwhile."""

    def render(job: JobRow) -> Answer:
        return written_answer(call, job, written.definition, 201, job.next_run_at_ms)

    service = call.service
    await service.counts.check(call.tenant_id, limits_of(service.tenants.tenants.known(call.tenant_id))[JOBS_LIMIT])
    new = NewJob(call.tenant_id, name, place.partition_id, written.definition, bool(written.paused))
    try:
        job = await service.create_job(place.shard, new, terms.asked, render)
    except Duplicate:
        return None
    service.counts.created(call.tenant_id)
    return render(job)


async def edit(call: Call, place: Place, job: JobRow, written: WrittenJob, terms: Terms) -> Answer | None:
    """200, or None if another has changed it meanwhile. What is equal is not written."""
    if is_equal(written, job):
        return written_answer(call, job, written.definition, 200, next_run_at(job, written.definition, call.now_ms))

    def render(changed: Changed) -> Answer:
        return written_answer(call, changed.job, written.definition, 200, changed.effective_from_ms)

    finish = keeping(place.shard, terms.asked, render)
    async with terms.lane:
        changed = await edit_job(place.shard, job, written.definition, written.paused, call.service.windows, finish)
    if changed is None:
        return None
    await wait_obeyed(place.shard, changed.signalled)
    return render(changed)


def is_equal(written: WrittenJob, job: JobRow) -> bool:
    """Whether a body says what is stored: then nothing is written, whatever the time is now."""
    same = written.definition.encode() == job.definition
    return same and written.paused in (None, job.state == JobState.PAUSED)
