"""What a run of a function is shown with besides: how far its worker is, what came of it, or why it does not begin."""

from __future__ import annotations

from typing import Any

import orjson

from api.requests import Call
from engine.model import FunctionTarget, RunState
from engine.rows import Report, RunRow
from engine.rules.timestamps import format_time
from engine.stages.door import last_asked
from engine.store.lists import definitions_of
from engine.store.placement import Place

# A worker that waits is written down three times in this span: a function asked for since then is no mystery.
ASKED_LATELY_MS = 60_000


async def show_function(call: Call, place: Place, run: RunRow, report: Report | None) -> dict[str, Any]:
    """The members of a function's run; none for any other."""
    definitions = await definitions_of(place.shard, place.partition_id, [(run.job_id, run.version)])
    definition = definitions.get((run.job_id, run.version))
    if definition is None or not isinstance(definition.target, FunctionTarget):
        return {}
    shown: dict[str, Any] = {"function": definition.target.name}
    if run.state == RunState.WAITING:
        return shown | await _waiting(call, place, run, definition.target.name)
    if report is None or report.attempt != run.attempt:
        return shown | {"progress": None, "note": None}
    shown |= {"progress": report.progress, "note": report.note}
    return shown if report.result is None else shown | {"result": orjson.loads(report.result)}


async def _waiting(call: Call, place: Place, run: RunRow, function: str) -> dict[str, Any]:
    """A run that is due, while nobody has asked for its function for a while."""
    if run.scheduled_at_ms > call.now_ms:
        return {}
    asked_ms = await last_asked(place.shard, call.tenant_id, function)
    if asked_ms is not None and asked_ms >= call.now_ms - ASKED_LATELY_MS:
        return {}
    since_ms = run.scheduled_at_ms if asked_ms is None else asked_ms
    return {"waiting": f"no worker has asked for this function since {format_time(since_ms)}"}
