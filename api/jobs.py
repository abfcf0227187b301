"""Jobs: create or edit, read, delete, list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from api.definitions import WrittenJob, read_job
from api.errors import CONFLICT, Problem, invalid, not_found
from api.idempotency import keeping
from api.job_reading import JobReading
from api.job_shown import job_answer, next_run_at, show_job, written_answer
from api.limits import JOBS_LIMIT, limits_of
from api.pieces import in_pieces
from api.requests import Call, check_preconditions
from api.responses import Answer, etag_of
from api.service import Creation
from engine.errors import StoreUnavailable
from engine.model import Definition, JobState
from engine.store.changes import Changed, delete_job, edit_job, wait_obeyed
from engine.store.connection import Duplicate
from engine.store.jobs import JobRow, NewJob, find_jobs
from engine.store.placement import Place
from engine.store.requests import Once
from engine.store.sealed import check_opened
from engine.store.shard import Shard

# A PUT that meets another one of the same name looks again at most this often.
ROUNDS_MAX = 10
# Of a batch so many bodies are read before others get a turn.
READ_PER_TURN = 20


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


async def create_many(
    call: Call, documents: Mapping[str, Any], asked: Mapping[str, Once | None]
) -> dict[str, Answer | Exception]:
    """Of many puts those whose name is free, created together at half the cost of one each.

    What is not in the answer is for ``put_one``: its name is taken, its shard is away, or the tenant's limit is near.
    """
    service = call.service
    limit = limits_of(service.tenants.tenants.known(call.tenant_id))[JOBS_LIMIT]
    room = await service.counts.room(call.tenant_id, limit)
    by_shard: dict[Shard, list[tuple[str, Place]]] = {}
    for name in list(documents)[:room]:
        with suppress(StoreUnavailable):
            place = service.placement.place(call.tenant_id, name)
            by_shard.setdefault(place.shard, []).append((name, place))
    parts = await asyncio.gather(
        *(_create_on_shard(call, shard, places, documents, asked) for shard, places in by_shard.items()),
        return_exceptions=True,
    )
    return {name: answer for part in parts if isinstance(part, dict) for name, answer in part.items()}


async def _create_on_shard(
    call: Call,
    shard: Shard,
    places: Sequence[tuple[str, Place]],
    documents: Mapping[str, Any],
    asked: Mapping[str, Once | None],
) -> dict[str, Answer | Exception]:
    """This shard's part; an error is that of all of it."""
    found = await find_jobs(shard, {(call.tenant_id, name) for name, _ in places})
    done: dict[str, Answer | Exception] = {}
    creations: list[Creation] = []
    async for name, place in in_pieces(places, READ_PER_TURN):
        if (call.tenant_id, name) in found:
            continue
        try:
            written = read_written(call, documents[name], None)
        except Problem as problem:
            done[name] = problem
            continue
        new = NewJob(call.tenant_id, name, place.partition_id, written.definition, bool(written.paused))
        creations.append(Creation(new, asked[name], partial(_created_answer, call, written)))
    for creation, job in zip(creations, await call.service.create_jobs(shard, creations), strict=True):
        if isinstance(job, JobRow):
            call.service.counts.created(call.tenant_id)
            done[creation.job.name] = creation.render(job)
    return done


def _created_answer(call: Call, written: WrittenJob, job: JobRow) -> Answer:
    return written_answer(call, job, written.definition, 201, job.next_run_at_ms)


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
    definition = Definition.salvage(stored.definition) if stored else None
    if definition is not None:
        check_opened(definition, call.service.placement.first.keys)
    reading = JobReading(
        call.now_ms,
        stored=definition,
        fingerprint=call.service.fingerprint(call.tenant_id),
        judge_url=call.service.guard.judge_url,
    )
    written = read_job(document, reading)
    if written is None:
        raise invalid(reading.faults)
    return written


async def _create(call: Call, place: Place, name: str, written: WrittenJob, terms: Terms) -> Answer | None:
    """201, or None if another has created it meanwhile."""
    render = partial(_created_answer, call, written)
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
