"""What is done to a run by a verb: cancel, retry."""

from __future__ import annotations

from functools import partial

from api.errors import CONFLICT, Problem, not_found
from api.idempotency import once
from api.job_verbs import NOTHING
from api.requests import Call
from api.responses import Answer
from api.runs import known_run, path_time, skipped_at
from engine.errors import StoreUnavailable
from engine.model import FINAL_STATES, Reason, RunKey, RunState
from engine.rows import RunRow
from engine.rules.shown import show_run, shown_state
from engine.store.changes import Cancelled, cancel_run, wait_obeyed
from engine.store.dead_letters import is_going, retry_dead_letters
from engine.store.lists import jobs_of_name
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
        # Withdrawn just now, or it ended long ago and its day has gone.
        if run.state not in FINAL_STATES:
            raise not_found("run")
        return _cancelled_answer(call, run, Cancelled(RunState(run.state)))
    if done:
        await wait_obeyed(place.shard, done[-1].signalled)
    return answer


async def retry(call: Call) -> Answer:
    """POST /v1/jobs/{name}/runs/{scheduled_at}:retry"""
    place, run = await _find_run(call)
    key = RunKey(place.partition_id, run.scheduled_at_ms, run.job_id)
    if run.state == RunState.FAILED and await is_going(place.shard, key):
        raise StoreUnavailable("the run's day is being put away just now: retry it once that is done")
    act = partial(retry_dead_letters, place.shard, call.tenant_id, [key])
    answer = await once(call, place.shard, act, partial(_retried_answer, call, run))
    assert answer is not None  # noqa: S101 - a count is always answered
    return answer


async def _find_run(call: Call) -> tuple[Place, RunRow]:
    """The run of the newest job of this name at the path's time, as GET finds it."""
    name = call.name()
    scheduled_at_ms = path_time(call)
    await call.fields(NOTHING)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    job_ids = [job.job_id for job in jobs]
    known = await known_run(call, place, scheduled_at_ms, job_ids)
    if known is not None:
        return place, known.run
    skip = await skipped_at(place, scheduled_at_ms, job_ids)
    if skip is None:
        raise not_found("run")
    return place, skip.run


def _cancelled_answer(call: Call, run: RunRow, cancelled: Cancelled) -> Answer:
    if cancelled.state not in (RunState.RUNNING, RunState.CANCELLED):
        raise Problem(CONFLICT, f"the run has ended: it is {cancelled.state.name.lower()}")
    # Its holder stops it within a moment; so a second cancel, which finds it ended, answers the same.
    return Answer(show_run(call.name(), run._replace(state=RunState.CANCELLED), call.now_ms), 202)


def _retried_answer(call: Call, run: RunRow, retried: int) -> Answer:
    if retried == 0:
        state = shown_state(run, call.now_ms)
        why = ", and its dead letter or its job is no longer there" if run.state == RunState.FAILED else ""
        raise Problem(CONFLICT, f"only a dead letter of a living job is retried: the run is {state}{why}")
    pending = run._replace(state=RunState.WAITING, tries=0, reason=Reason.RETRY, outcome=None, status_code=None)
    return Answer(show_run(call.name(), pending._replace(started_at_ms=None, finished_at_ms=None), call.now_ms), 202)
