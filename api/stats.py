"""Numbers of a job, and of a whole tenant: how many runs ended how, and how late and long they were."""

from __future__ import annotations

import asyncio
from typing import Any

from api.errors import not_found
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from engine.errors import HistoryUnavailable, StoreUnavailable
from engine.model import HOUR_MS
from engine.rules.timestamps import format_time
from engine.store.lists import jobs_of_name
from engine.store.rollups import RUNS_MIN, Counted, Sums, job_sums, tenant_sums
from engine.store.shard import Shard

SPANS_MS = {"last_hour": HOUR_MS, "last_day": 24 * HOUR_MS, "last_30_days": 30 * 24 * HOUR_MS}
ENDS = ("succeeded", "failed", "cancelled", "skipped")


async def job_stats(call: Call) -> Answer:
    """GET /v1/jobs/{name}/stats"""
    name = call.name()
    call.query(EMPTY_QUERY)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    if not jobs:
        raise not_found("job")
    # The hour is read run by run, to the millisecond; what is longer begins with an hour.
    spans = [(call.now_ms - HOUR_MS, call.now_ms), *_spans(call.now_ms)[1:]]
    found = await job_sums(place.shard, jobs[0], spans)
    whole = [await _with_past(call, jobs[0].job_id, counted) for counted in found]
    return Answer({"job": name, **_shown(whole)})


async def _with_past(call: Call, job_id: int, counted: Counted) -> Counted:
    """With what has left MySQL: hours that were not busy, in which few runs were."""
    try:
        past = await asyncio.gather(*(_of_stretch(call, job_id, *stretch) for stretch in counted.left))
    except HistoryUnavailable:
        return counted._replace(complete=False)
    for sums, complete in past:
        counted = counted._replace(sums=counted.sums.plus(sums), complete=counted.complete and complete)
    return counted


async def _of_stretch(call: Call, job_id: int, from_ms: int, to_ms: int) -> tuple[Sums, bool]:
    """Its sums, and whether they are all of it: a busy hour that was not counted may have any number of runs."""
    history = call.service.history
    if history is None:
        return Sums(), False
    rows_max = RUNS_MIN * -(-(to_ms - from_ms) // HOUR_MS)
    ends = await history.list_ends(call.tenant_id, job_id, from_ms, to_ms - 1, rows_max)
    return Sums.of_ends(ends), len(ends) < rows_max and from_ms >= history.kept_from_ms(call.now_ms)


async def tenant_stats(call: Call) -> tuple[dict[str, Any], float]:
    """The same of all jobs of a tenant, by whole hours; and the runs called a second, the mean of the first span."""
    spans = _spans(call.now_ms)
    asked = [_of_shard(shard, call.tenant_id, spans) for shard in call.service.placement.shards]
    found, *more = await asyncio.gather(*asked)
    for of_shard in more:
        found = [one.plus(other) for one, other in zip(found, of_shard, strict=True)]
    return _shown(found), _called_per_s(found[0])


def _called_per_s(counted: Counted) -> float:
    return round(counted.sums.called * 1000 / max(1000, counted.to_ms - counted.from_ms), 3)


async def _of_shard(shard: Shard, tenant_id: int, spans: list[tuple[int, int]]) -> list[Counted]:
    """A shard that is away is missing in the sums, which say so."""
    try:
        return await tenant_sums(shard, tenant_id, spans)
    except StoreUnavailable:
        return [Counted(from_ms, to_ms, Sums(), complete=False) for from_ms, to_ms in spans]


def _spans(now_ms: int) -> list[tuple[int, int]]:
    starts = [now_ms - span_ms for span_ms in SPANS_MS.values()]
    return [(start_ms - start_ms % HOUR_MS, now_ms) for start_ms in starts]


def _shown(found: list[Counted]) -> dict[str, Any]:
    return {name: _shown_span(counted) for name, counted in zip(SPANS_MS, found, strict=True)}


def _shown_span(counted: Counted) -> dict[str, Any]:
    sums = counted.sums
    return {
        "from": format_time(counted.from_ms),
        "to": format_time(counted.to_ms),
        "runs": {end: getattr(sums, end) for end in ENDS},
        "lag_ms": _mean_and_max(sums.called, sums.lag_sum_ms, sums.lag_max_ms),
        "duration_ms": _mean_and_max(sums.called, sums.duration_sum_ms, sums.duration_max_ms),
        "complete": counted.complete,
    }


def _mean_and_max(called: int, sum_ms: int, max_ms: int) -> dict[str, float] | None:
    """None where nothing was called."""
    return {"mean": round(sum_ms / called, 1), "max": max_ms} if called else None
