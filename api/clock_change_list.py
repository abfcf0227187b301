"""Rehearsal of clock changes: which of a tenant's jobs meet one, and what will happen."""

from __future__ import annotations

import re
from typing import Any

from api.clock_changes import months_after, show_clock_changes
from api.echo import echo
from api.fields import Reading
from api.job_list import find_names, load_jobs
from api.paging import PAGE_SLOTS, next_page_token, page_of
from api.pieces import in_pieces
from api.records import Record, Slot
from api.requests import Call
from api.responses import Answer
from engine.errors import CallerError
from engine.model import Definition, JobState
from engine.store.lists import ROWS_READ_MAX, JobFilter

WITHIN = (12, 0)
WITHIN_MONTHS_MAX = 120
# In ten years a job meets twenty clock changes: after so many jobs others get a turn.
JOBS_PER_TURN = 20

_PERIOD = re.compile(r"P([1-9][0-9]{0,3})([YMWD])")


class Period:
    """An ISO 8601 duration of years, months, weeks or days; read as months and days."""

    def read(self, value: Any, at: str, reading: Reading) -> tuple[int, int] | None:
        found = _PERIOD.fullmatch(value)
        if found:
            count = int(found[1])
            months, days = {"Y": (12 * count, 0), "M": (count, 0), "W": (0, 7 * count), "D": (0, count)}[found[2]]
            if months + days // 28 <= WITHIN_MONTHS_MAX:
                return months, days
        reading.fault(at, f"{echo(value)} is not a period of at most ten years", "P1Y")
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_PERIOD.pattern}$", "examples": ["P1Y"]}


QUERY = Record(
    "ClockChangesQuery",
    {"within": Slot(Period(), "How far ahead to look.", default="P1Y"), **PAGE_SLOTS},
    lambda given, at, reading: given,
)


async def list_clock_changes(call: Call) -> Answer:
    """GET /v1/clock-changes: reads on until the page is full or has read enough."""
    given = call.query(QUERY)
    page = page_of(call, given)
    until_ms = months_after(call.now_ms, *given.get("within", WITHIN))
    after: str | None = page.position or ""
    met: list[dict[str, Any]] = []
    read = 0
    while after is not None and len(met) < page.size and read < ROWS_READ_MAX:
        found, after = await find_names(call, JobFilter(), after, page.size - len(met))
        rows = await load_jobs(call, found)
        read += len(found)
        async for each in in_pieces(found, JOBS_PER_TURN):
            row = rows.get(each.name)
            if row is not None and row.state in (JobState.ACTIVE, JobState.PAUSED):
                shown = _met(Definition.salvage(row.definition), call.now_ms, until_ms)
                met += [{"name": row.name, "clock_changes": shown}] if shown else []
    return Answer({"jobs": met, "next_page_token": next_page_token(call, after)})


def _met(definition: Definition, now_ms: int, until_ms: int) -> list[dict[str, Any]]:
    try:
        return show_clock_changes(definition.schedule, now_ms, until_ms)
    except CallerError:  # a zone that is gone
        return []
