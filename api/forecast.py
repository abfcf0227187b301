"""The tenant's coming hour, second by second."""

from __future__ import annotations

import asyncio
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
# A job that is due every second has 3,600 times in the hour: so many are counted in all, some seconds' work, and so
# many in one piece, some milliseconds'.
TIMES_MAX, TIMES_PER_TURN = 5_000_000, 10_000
PAGE = 1_000


async def forecast(call: Call) -> Answer:
    """GET /v1/forecast"""
    call.query(EMPTY_QUERY)
    until_ms = call.now_ms + AHEAD_MS
    runs: Counter[int] = Counter()
    after: str | None = ""
    read, turn_at = 0, TIMES_PER_TURN
    counted = 0
    while after is not None and read < JOBS_MAX and counted < TIMES_MAX:
        found, after = await find_names(call, JobFilter(JobState.ACTIVE, next_before_ms=until_ms), after, PAGE)
        read += max(1, len(found))
        for row in (await load_jobs(call, found)).values():
            times = _times(Definition.salvage(row.definition), call.now_ms, until_ms)
            runs.update(times)
            counted += len(times)
            if counted >= turn_at:
                turn_at = counted + TIMES_PER_TURN
                await asyncio.sleep(0)
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
