"""Runs of a job: the list, newest first, and one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from api.errors import invalid, not_found
from api.fields import Choice, Instant, Reading, Record, Slot, echo
from api.paging import PAGE_SLOTS, next_page_token, page_of
from api.requests import Call
from api.responses import Answer
from engine.model import OutcomeKind, RunState
from engine.rules.shown import show_run, shown_state
from engine.rules.timestamps import format_time, parse_time
from engine.store.lists import AttemptRow, Named, RunRow, jobs_of_name, run_at, runs_of_job
from engine.store.shard import Shard

DAY_MS = 86_400_000
# Nothing is planned further ahead than this.
PLANNED_AHEAD_MS_MAX = DAY_MS
# The window of one question about runs: it touches at most two days.
WINDOW_MS = DAY_MS
# A page that has asked so often answers short.
WINDOWS_MAX = 40

_STORED_STATES = {
    "pending": (RunState.PENDING, RunState.RUNNING, RunState.WAITING),
    "running": (RunState.RUNNING,),
    "succeeded": (RunState.SUCCEEDED,),
    "failed": (RunState.FAILED,),
    "cancelled": (RunState.CANCELLED,),
    "skipped": (RunState.SKIPPED,),
}
_EVERY_STATE = tuple(state for state in RunState if state != RunState.WITHDRAWN)

QUERY = Record(
    "RunsQuery",
    {
        "state": Slot(Choice({state: state for state in _STORED_STATES})),
        "scheduled_from": Slot(Instant(), "Scheduled at this time or later."),
        "scheduled_to": Slot(Instant(), "Scheduled at this time or earlier."),
        **PAGE_SLOTS,
    },
    lambda given, at, reading: given,
)

_PATH_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z")


async def list_runs(call: Call) -> Answer:
    """GET /v1/jobs/{name}/runs"""
    name = call.name()
    given = call.query(QUERY)
    page = page_of(call, given)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    if not jobs:
        raise not_found("job")
    walk = _Walk(call, place.shard, jobs, given.get("state"), given.get("scheduled_from"), given.get("scheduled_to"))
    runs, reached = await walk.page(page.size, page.position)
    shown = [show_run(name, run, call.now_ms) for run in runs]
    return Answer({"runs": shown, "next_page_token": next_page_token(call, reached)})


async def get_run(call: Call) -> Answer:
    """GET /v1/jobs/{name}/runs/{scheduled_at}"""
    name = call.name()
    scheduled_at_ms = path_time(call)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    found = None
    if jobs:
        found = await run_at(place.shard, place.partition_id, scheduled_at_ms, [job.job_id for job in jobs])
    if found is None:
        raise not_found("run")
    run, attempts = found
    return Answer(show_run(name, run, call.now_ms) | {"attempt_list": _show_attempts(run, attempts)})


def path_time(call: Call) -> int:
    """The scheduled time in the path; 422 with the spelling if it is none."""
    text = call.path["scheduled_at"]
    try:
        if not _PATH_TIME.fullmatch(text):
            raise ValueError
        return parse_time(text)
    except ValueError:
        reading = Reading(call.now_ms)
        reading.fault(
            "/scheduled_at", f"{echo(text)} is not spelled YYYY-MM-DDTHH:MM:SS[.mmm]Z", "2030-01-31T09:00:00Z"
        )
        raise invalid(reading.faults) from None


class _Walk:
    """Walks a name's runs backwards in windows of a day, over all jobs that had the name."""

    def __init__(
        self, call: Call, shard: Shard, jobs: Sequence[Named], state: str | None, from_ms: int | None, to_ms: int | None
    ) -> None:
        self._now_ms = call.now_ms
        self._shard = shard
        self._jobs = jobs
        self._state = state
        oldest_ms = min(job.created_at_ms for job in jobs) - DAY_MS
        self._from_ms = oldest_ms if from_ms is None else max(oldest_ms, from_ms)
        newest_ms = call.now_ms + PLANNED_AHEAD_MS_MAX
        self._to_ms = newest_ms if to_ms is None else min(newest_ms, to_ms)

    async def page(self, size: int, position: list[int] | None) -> tuple[list[RunRow], list[int] | None]:
        """At most ``size`` runs after a position (time, job), and the position reached if there may be more."""
        runs: list[RunRow] = []
        to_ms = self._to_ms if position is None else min(self._to_ms, position[0])
        for _ in range(WINDOWS_MAX):
            if to_ms < self._from_ms:
                return runs, None
            window_from_ms = max(self._from_ms, to_ms - WINDOW_MS + 1)
            runs += await self._window(window_from_ms, to_ms, size - len(runs) + 1, position)
            if len(runs) > size:
                return runs[:size], [runs[size - 1].scheduled_at_ms, runs[size - 1].job_id]
            to_ms = window_from_ms - 1
        return runs, [to_ms + 1, 0]

    async def _window(self, from_ms: int, to_ms: int, rows_max: int, position: list[int] | None) -> list[RunRow]:
        states = _EVERY_STATE if self._state is None else _STORED_STATES[self._state]
        found: list[RunRow] = []
        for job in self._jobs:
            # At the position's own time a job's run may have been answered already: one more row makes up for it.
            found += await runs_of_job(self._shard, job, states, from_ms, to_ms, rows_max + 1)
        found.sort(key=lambda run: (run.scheduled_at_ms, run.job_id), reverse=True)
        return [run for run in found if self._is_wanted(run, position)][:rows_max]

    def _is_wanted(self, run: RunRow, position: list[int] | None) -> bool:
        if position is not None and (run.scheduled_at_ms, run.job_id) >= (position[0], position[1]):
            return False
        return self._state is None or shown_state(run, self._now_ms) == self._state


def _show_attempts(run: RunRow, failed: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    """The failed attempts, and the last one if it did not fail."""
    shown = [
        {
            "attempt": each.attempt,
            "started_at": None if each.started_at_ms is None else format_time(each.started_at_ms),
            "finished_at": format_time(each.finished_at_ms),
            "outcome": OutcomeKind(each.outcome).name.lower(),
            "status_code": each.status_code,
            "detail": each.detail,
            "answer": None if each.answer is None else bytes(each.answer).decode(errors="replace"),
        }
        for each in failed
    ]
    if run.state == RunState.SUCCEEDED and run.started_at_ms is not None and run.finished_at_ms is not None:
        shown.append(
            {
                "attempt": run.attempt,
                "started_at": format_time(run.started_at_ms),
                "finished_at": format_time(run.finished_at_ms),
                "outcome": None if run.outcome is None else OutcomeKind(run.outcome).name.lower(),
                "status_code": run.status_code,
                "detail": None,
                "answer": None,
            }
        )
    return shown
