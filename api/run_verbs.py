"""What is done to a run by a verb: cancel, retry."""

from __future__ import annotations

from functools import partial

from api.errors import CONFLICT, Problem, not_found
from api.idempotency import once
from api.job_verbs import NOTHING
from api.requests import Call
from api.responses import Answer
from api.runs import path_time
from engine.model import RunKey, RunState
from engine.rows import RunRow
from engine.rules.shown import show_run
from engine.store.changes import Cancelled, cancel_run, wait_obeyed
from engine.store.dead_letters import retry_dead_letters
from engine.store.lists import jobs_of_name, run_at
from engine.store.placement import Place


async def cancel(call: Call) -> Answer:
    """POST /v1/jobs/{name}/runs/{scheduled_at}:cancel"""
    place, run = await _find_run(call)
    act = partial(cancel_run, place.shard, place.partition_id, run.scheduled_at_ms, run.job_id)
    done: list[Cancelled] = []

    def render(cancelled: Cancelled) -> Answer:
        done.append(cancelled)
        return _cancelled_answer(call, run, cancelled)

    answer = await once(call, place.shard, act, render)
    if answer is None:
        raise not_found("run")
    if done:
        await wait_obeyed(place.shard, done[-1].signalled)
    return answer


async def retry(call: Call) -> Answer:
    """POST /v1/jobs/{name}/runs/{scheduled_at}:retry"""
    place, run = await _find_run(call)
    key = RunKey(place.partition_id, run.scheduled_at_ms, run.job_id)
    act = partial(retry_dead_letters, place.shard, call.tenant_id, [key])
    answer = await once(call, place.shard, act, partial(_retried_answer, call, run))
    assert answer is not None  # noqa: S101 - a count is always answered
    return answer


async def _find_run(call: Call) -> tuple[Place, RunRow]:
    """The run of the newest job of this name at the path's time."""
    name = call.name()
    scheduled_at_ms = path_time(call)
    await call.fields(NOTHING)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    found = None
    if jobs:
        found = await run_at(place.shard, place.partition_id, scheduled_at_ms, [job.job_id for job in jobs])
    if found is None:
        raise not_found("run")
    return place, found[0]


def _cancelled_answer(call: Call, run: RunRow, cancelled: Cancelled) -> Answer:
    if cancelled.state not in (RunState.RUNNING, RunState.CANCELLED):
        raise Problem(CONFLICT, f"the run has ended: it is {cancelled.state.name.lower()}")
    # Its holder stops it within a moment; so a second cancel, which finds it ended, answers the same.
    return Answer(show_run(call.name(), run._replace(state=RunState.CANCELLED), call.now_ms), 202)


def _retried_answer(call: Call, run: RunRow, retried: int) -> Answer:
    if retried == 0:
        state = RunState(run.state)
        why = "it is no longer among the dead letters" if state == RunState.FAILED else f"it is {state.name.lower()}"
        raise Problem(CONFLICT, f"only a dead letter of a living job is retried: {why}")
    pending = run._replace(state=RunState.WAITING, tries=0, reason=None, outcome=None, status_code=None)
    return Answer(show_run(call.name(), pending._replace(started_at_ms=None, finished_at_ms=None), call.now_ms), 202)
