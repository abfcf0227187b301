"""What is done to a job by a verb: pause, resume, run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from api.errors import CONFLICT, Problem, not_found
from api.fields import Text, choice_of
from api.idempotency import once
from api.job_shown import job_answer
from api.jobs import find_job
from api.records import Record, Slot
from api.requests import Call
from api.responses import Answer
from engine.model import JobState, MissedRuns, RunState, Trigger
from engine.rows import RunRow
from engine.rules.shown import show_run
from engine.store.changes import Changed, Started, pause_job, resume_job, start_run, wait_obeyed
from engine.store.jobs import JobRow
from engine.store.placement import Place
from engine.store.requests import Finish

PAUSE = Record(
    "PauseRequest",
    {"note": Slot(Text(255, example="until the migration is done"), "Why; shown with the job.")},
    lambda given, at, reading: given,
)
RESUME = Record(
    "ResumeRequest",
    {"missed_runs": Slot(choice_of(MissedRuns), "For this once, instead of the job's own.")},
    lambda given, at, reading: given,
)
NOTHING = Record("EmptyRequest", {}, lambda given, at, reading: given)


async def pause(call: Call) -> Answer:
    """POST /v1/jobs/{name}:pause"""
    place, fields = await _place_and_fields(call, PAUSE)

    async def act(finish: Finish[Changed]) -> Changed | None:
        job = await _find(call, place)
        return await pause_job(place.shard, job, fields.get("note"), call.service.windows, finish)

    return await _change(call, place, act)


async def resume(call: Call) -> Answer:
    """POST /v1/jobs/{name}:resume"""
    place, fields = await _place_and_fields(call, RESUME)

    async def act(finish: Finish[Changed]) -> Changed | None:
        job = await _find(call, place)
        return await resume_job(place.shard, job, fields.get("missed_runs"), call.service.windows, finish)

    return await _change(call, place, act)


async def run(call: Call) -> Answer:
    """POST /v1/jobs/{name}:run"""
    place, _ = await _place_and_fields(call, NOTHING)

    async def act(finish: Finish[Started]) -> Started | None:
        return await start_run(place.shard, await _find(call, place), call.service.windows, finish)

    answer = await once(call, place.shard, act, partial(_started_answer, call))
    if answer is None:
        raise not_found("job")
    call.service.work.hub.nudge()
    return answer


async def _place_and_fields(call: Call, record: Record) -> tuple[Place, Mapping[str, Any]]:
    name = call.name()
    fields = await call.fields(record)
    return call.service.placement.place(call.tenant_id, name), fields


async def _find(call: Call, place: Place) -> JobRow:
    """The job that is acted on. Looked for only once it is known that this call has not had its effect before: its
    repeat gets the first answer, whatever has become of the job."""
    job = await find_job(call, place, call.name())
    if job is None:
        raise not_found("job")
    if job.state == JobState.INVALID:
        raise Problem(CONFLICT, "the job is invalid: its schedule cannot be evaluated; edit it first")
    return job


async def _change(call: Call, place: Place, act: Callable[[Finish[Changed]], Awaitable[Changed | None]]) -> Answer:
    changes: list[Changed] = []

    def render(changed: Changed) -> Answer:
        changes.append(changed)
        return job_answer(call, changed.job)

    answer = await once(call, place.shard, act, render)
    if answer is None:
        raise not_found("job")
    if changes:
        await wait_obeyed(place.shard, changes[-1].signalled)
    return answer


def _started_answer(call: Call, started: Started) -> Answer:
    """The run as it begins: nobody has claimed it yet."""
    job = started.job
    run = RunRow(
        started.scheduled_at_ms, job.job_id, job.version, RunState.WAITING, Trigger.MANUAL, 0, 0, None, None, None,
        None, None, 0,
    )  # fmt: skip
    return Answer(show_run(job.name, run, call.now_ms))
