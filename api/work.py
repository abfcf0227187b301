"""The work protocol: a worker claims function runs, tells that it lives, and ends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request

from api.auth import may_work_on
from api.errors import CONFLICT, FORBIDDEN, Problem, not_found
from api.fields import AnyValue, Duration, Flag, Reading, Text, Whole
from api.records import ListOf, Record, Slot
from api.requests import Call
from api.responses import Answer
from api.targets import FUNCTION_NAME
from api.work_place import TOKEN_CHARS
from engine.model import RunState, Trigger, idempotency_key, job_id_text
from engine.rules.durations import format_duration
from engine.rules.retry import RETRY_AFTER_MS_MAX
from engine.rules.shown import show_run
from engine.rules.timestamps import format_time
from engine.rules.work import ERROR_CHARS_MAX, HEARTBEAT_MS, NOTE_CHARS_MAX, RESULT_BYTES_MAX, Deed
from engine.stages.versions import LEASE_BEYOND_TIMEOUT_MS
from engine.stages.work import Beat, Claimed, Stale
from engine.stages.work_ends import End, Fence, WorkRow, fence_of

FUNCTIONS_MAX = 100
RUNS_MAX = 100
WAIT_MS_MAX = 60_000

TOKEN_SCHEMA = {"type": "string", "pattern": f"^[A-Za-z0-9_-]{{{TOKEN_CHARS}}}$", "description": "From a claim."}


def _as_given(given: dict[str, Any], at: str, reading: Reading) -> dict[str, Any]:
    return given


CLAIM = Record(
    "WorkClaim",
    {
        "functions": Slot(ListOf(FUNCTION_NAME, FUNCTIONS_MAX, 1), "What this worker can run.", required=True),
        "max": Slot(Whole(1, RUNS_MAX, 1), "How many runs at most.", default=1),
        "wait": Slot(Duration(0, WAIT_MS_MAX, "20s"), "How long to wait for one.", default="0s"),
    },
    _as_given,
)
HEARTBEAT = Record(
    "WorkHeartbeat",
    {
        "progress": Slot(Whole(0, 100, 40), "Percent; shown with the run."),
        "note": Slot(Text(NOTE_CHARS_MAX, example="page 4 of 10"), "Shown with the run."),
    },
    _as_given,
)
RESULT = Slot(AnyValue(RESULT_BYTES_MAX), "Any JSON value, kept with the run.")
COMPLETE = Record("WorkComplete", {"result": RESULT}, _as_given)
COMPLETED = Record(
    "WorkCompleted",
    {"token": Slot(Text(TOKEN_CHARS), "From a claim.", required=True), "result": RESULT},
    _as_given,
)
COMPLETE_SOME = Record(
    "WorkCompleteSome",
    {"runs": Slot(ListOf(COMPLETED, RUNS_MAX, 1), "Those that have ended, with their results.", required=True)},
    _as_given,
)
FAIL = Record(
    "WorkFail",
    {
        "error": Slot(Text(ERROR_CHARS_MAX, example="the report's source is away"), "What went wrong.", required=True),
        "retryable": Slot(Flag(), "Whether another try may help.", default=True),
        "retry_after": Slot(Duration(0, RETRY_AFTER_MS_MAX, "30s"), "No try begins sooner than this."),
    },
    _as_given,
)
RELEASE = Record(
    "WorkRelease",
    {"started": Slot(Flag(), "Whether the function had begun: then this was a try.", default=True)},
    _as_given,
)


async def claim(call: Call) -> Answer:
    """POST /v1/work:claim"""
    asked = await call.fields(CLAIM)
    names = list(dict.fromkeys(asked["functions"]))
    refused = [name for name in names if not may_work_on(call.scope, name)]
    if refused:
        raise Problem(FORBIDDEN, f"this key may not claim {', '.join(refused)}")
    place = call.service.work
    functions = [(call.tenant_id, name) for name in names]
    place.asked(functions, call.now_ms)
    claimed = await place.hub.claim(
        functions, asked.get("max", 1), asked.get("wait", 0), lambda: _left(call.request)
    )
    return Answer({"runs": [_show(call, each) for each in claimed]})


async def heartbeat(call: Call) -> Answer:
    """POST /v1/work/{token}:heartbeat"""
    said = await call.fields(HEARTBEAT)
    fence = _fence(call)
    renewed = await call.service.work.renew(Beat(fence, said.get("progress"), said.get("note")))
    if isinstance(renewed, Stale):
        raise _stale(fence, renewed)
    stop = False if renewed.stop is None else renewed.stop.value
    return Answer({"stop": stop, "lease_until": format_time(renewed.lease_until_ms)})


async def complete(call: Call) -> Answer:
    """POST /v1/work/{token}:complete"""
    return await _end(call, Deed.COMPLETE, result=_result(await call.fields(COMPLETE)))


async def complete_some(call: Call) -> Answer:
    """POST /v1/work:complete"""
    said = (await call.fields(COMPLETE_SOME))["runs"]
    place = call.service.work
    fences = [place.fence(call.tenant_id, each["token"]) for each in said]
    known = [
        End(fence, Deed.COMPLETE, result=_result(each)) for fence, each in zip(fences, said, strict=True) if fence
    ]
    ended = iter(await place.end_all(known))
    return Answer({"results": [_shown_end(call, fence, next(ended) if fence else None) for fence in fences]})


async def fail(call: Call) -> Answer:
    """POST /v1/work/{token}:fail"""
    said = await call.fields(FAIL)
    retry_after = None if said.get("retry_after") is None else str(-(-said["retry_after"] // 1_000))
    deed = Deed.FAIL if said.get("retryable", True) else Deed.FAIL_FOR_GOOD
    return await _end(call, deed, error=said["error"], retry_after=retry_after)


async def release(call: Call) -> Answer:
    """POST /v1/work/{token}:release"""
    said = await call.fields(RELEASE)
    return await _end(call, Deed.RELEASE if said.get("started", True) else Deed.UNSTARTED)


async def _end(call: Call, deed: Deed, **said: Any) -> Answer:
    fence = _fence(call)
    ended = await call.service.work.end(End(fence, deed, **said))
    if isinstance(ended, Stale):
        raise _stale(fence, ended)
    return Answer(show_run(ended.name or "", ended, call.now_ms))


def _shown_end(call: Call, fence: Fence | None, ended: WorkRow | Stale | BaseException | None) -> dict[str, Any]:
    """One of several ends as it would be answered alone."""
    if isinstance(ended, WorkRow):
        return {"status": 200, "run": show_run(ended.name or "", ended, call.now_ms)}
    if fence is None:
        problem = _no_work()
    elif isinstance(ended, Stale):
        problem = _stale(fence, ended)
    else:
        problem = call.problem_of_one(ended)
    return {"status": problem.kind.status, "problem": problem.document()}


def _result(said: Mapping[str, Any]) -> bytes | None:
    return orjson.dumps(said["result"]) if said.get("result") is not None else None


def _fence(call: Call) -> Fence:
    fence = call.service.work.fence(call.tenant_id, call.path["token"])
    if fence is None:
        raise _no_work()
    return fence


def _no_work() -> Problem:
    return not_found("work; a token is one that a claim of this tenant has answered")


def _stale(fence: Fence, stale: Stale) -> Problem:
    return Problem(CONFLICT, f"this attempt is over, nothing was changed: {_why(fence, stale.run)}")


def _why(fence: Fence, run: WorkRow | None) -> str:
    if run is None:
        return "nothing is known of the run any more"
    state = RunState(run.state)
    if run.attempt != fence.attempt:
        return f"the run was given to another worker, attempt {run.attempt} is the last; it is {_name(state)}"
    return f"the run is {_name(state)}"


def _name(state: RunState) -> str:
    return "pending" if state == RunState.WAITING else state.name.lower()


def _show(call: Call, claimed: Claimed) -> dict[str, Any]:
    run = claimed.run
    function = run.call.function
    assert function is not None  # noqa: S101 - a door claims nothing else
    return {
        "token": call.service.work.token(call.tenant_id, fence_of(run)),
        "function": function.name,
        "payload": function.payload,
        "job": claimed.name,
        "job_id": job_id_text(run.key.job_id),
        "scheduled_at": format_time(run.key.scheduled_at_ms),
        "attempt": run.attempt,
        "idempotency_key": idempotency_key(run.key.job_id, run.key.scheduled_at_ms),
        "deadline": format_time(run.lease_until_ms - LEASE_BEYOND_TIMEOUT_MS),
        "heartbeat_interval": format_duration(HEARTBEAT_MS),
        "trigger": Trigger(claimed.trigger).name.lower(),
    }


async def _left(request: Request) -> None:
    """Until the caller has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
