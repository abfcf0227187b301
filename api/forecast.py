"""The tenant's coming hour, second by second."""

from __future__ import annotations

from collections import Counter
from typing import Any

from api.job_list import find_names, load_jobs
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from engine.errors import CallerError
from engine.model import Definition, JobState
from engine.rules.schedule import next_n_times
from engine.rules.timestamps import format_time
from engine.store.lists import JobFilter

AHEAD_MS = 60 * 60_000
# A tenant with more jobs in the hour gets what was counted so far, and is told so.
JOBS_MAX = 50_000
PAGE = 1_000


async def forecast(call: Call) -> Answer:
    """GET /v1/forecast"""
    call.query(EMPTY_QUERY)
    until_ms = call.now_ms + AHEAD_MS
    runs: Counter[int] = Counter()
    after: str | None = ""
    read = 0
    while after is not None and read < JOBS_MAX:
        found, after = await find_names(call, JobFilter(JobState.ACTIVE, next_before_ms=until_ms), after, PAGE)
        read += max(1, len(found))
        for row in (await load_jobs(call, found)).values():
            runs.update(_times(Definition.salvage(row.definition), call.now_ms, until_ms))
    seconds: list[dict[str, Any]] = [{"second": format_time(at_ms), "runs": runs[at_ms]} for at_ms in sorted(runs)]
    return Answer(
        {
            "from": format_time(call.now_ms),
            "to": format_time(until_ms),
            "runs": runs.total(),
            "complete": after is None,
            "seconds": seconds,
        }
    )


def _times(definition: Definition, after_ms: int, until_ms: int) -> list[int]:
    count_max = (until_ms - after_ms) // 1000 + 1
    try:
        times = next_n_times(definition.schedule, after_ms, count_max)
    except CallerError:  # a zone that is gone
        return []
    return [at_ms for at_ms in times if at_ms <= until_ms]
