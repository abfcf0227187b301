"""Runs of a job: the list, newest first, and one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from api.echo import echo
from api.errors import invalid, not_found
from api.fields import Choice, Instant, Reading
from api.paging import PAGE_SLOTS, next_page_token, page_of
from api.past_runs import PastRuns
from api.pieces import in_pieces
from api.records import Record, Slot
from api.requests import Call
from api.responses import Answer
from api.run_function import show_function
from engine.errors import CallerError, HistoryUnavailable
from engine.model import Definition, OutcomeKind, RunState, Trigger
from engine.rows import AttemptRow, PastRun, RunRow, merge_attempts
from engine.rules.schedule import mark_of, next_time
from engine.rules.shown import show_range, show_run
from engine.rules.timestamps import format_time, parse_time
from engine.stages.work import report_of
from engine.store.audit import read_floor, read_gone
from engine.store.dead_letters import dead_letter_at
from engine.store.lists import (
    ROWS_READ_MAX,
    Named,
    SkipRow,
    definitions_of,
    jobs_of_name,
    run_at,
    runs_of_job,
    skip_over,
    skips_of_job,
)
from engine.store.placement import Place
from engine.store.shard import Shard

DAY_MS = 86_400_000
# Nothing is planned further ahead than this.
PLANNED_AHEAD_MS_MAX = DAY_MS
# The first question about runs touches two days; each further one looks back twice as far, since a day in which the job
# did not run costs 20 µs in one question and 250 as one of its own: a daily job's 30 days take six. With a filter by
# state a question may read all it looks at, and stays with its day.
WINDOW_MS = DAY_MS
# A page that has asked so often answers short.
WINDOWS_MAX = 40

# A run takes some 20 µs to be shown: a page of a thousand would hold up everybody's calls.
SHOWN_PER_TURN = 100

OLDER_UNAVAILABLE = "older history is unavailable for now: the list may lack runs that have left MySQL"

STATES = ("pending", "running", "succeeded", "failed", "cancelled", "skipped")
_EVERY_STATE = tuple(state for state in RunState if state != RunState.WITHDRAWN)

QUERY = Record(
    "RunsQuery",
    {
        "state": Slot(Choice({state: state for state in STATES})),
        "scheduled_from": Slot(Instant(), "Scheduled at this time or later."),
        "scheduled_to": Slot(Instant(), "Scheduled at this time or earlier."),
        **PAGE_SLOTS,
    },
    lambda given, at, reading: given,
)

PATH_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z")


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
    entries, reached = await walk.page(page.size, page.position)
    shown = await _show(call, place, name, entries)
    answer = {"runs": shown, "next_page_token": next_page_token(call, reached)}
    return Answer(answer | ({"warnings": [OLDER_UNAVAILABLE]} if walk.older_unavailable else {}))


async def get_run(call: Call) -> Answer:
    """GET /v1/jobs/{name}/runs/{scheduled_at}"""
    name = call.name()
    scheduled_at_ms = path_time(call)
    place = call.service.placement.place(call.tenant_id, name)
    jobs = await jobs_of_name(place.shard, call.tenant_id, name)
    job_ids = [job.job_id for job in jobs]
    found = await known_run(call, place, scheduled_at_ms, job_ids)
    if found is None:
        return await _skipped_answer(call, place, name, scheduled_at_ms, job_ids)
    return await _run_answer(call, place, name, found)


async def known_run(call: Call, place: Place, at_ms: int, job_ids: Sequence[int]) -> PastRun | None:
    """The run of the newest of these jobs at a time: from MySQL, from the history where its day has gone, or its dead
    letter, which outlives the day. One that was retried after that has earlier attempts in the history."""
    if not job_ids:
        return None
    live = await run_at(place.shard, place.partition_id, at_ms, job_ids)
    history = call.service.history
    past = None
    if history is not None and at_ms < (await read_gone(place.shard) if live else await read_floor(place.shard)):
        past = await history.read_run(call.tenant_id, [live[0].job_id] if live else job_ids, at_ms)
    if live is None:
        letter = None if past else await dead_letter_at(place.shard, place.partition_id, at_ms, job_ids)
        return PastRun(letter, (), None) if letter else past
    run, attempts = live
    report = await report_of(place.shard, place.partition_id, run.scheduled_at_ms, run.job_id)
    return PastRun(run, merge_attempts(past.attempts, attempts) if past else attempts, report)


async def _run_answer(call: Call, place: Place, name: str, found: PastRun) -> Answer:
    run, attempts, report = found
    (shown,) = await _show(call, place, name, [Entry(run)])
    of_function = await show_function(call, place, run, report)
    return Answer(shown | of_function | {"attempt_list": _show_attempts(run, attempts)})


async def _skipped_answer(call: Call, place: Place, name: str, at_ms: int, job_ids: Sequence[int]) -> Answer:
    """A time inside a skipped range; 404 if it is in none, or was no time of the job."""
    skip = await skipped_at(place, at_ms, job_ids)
    if skip is None:
        raise not_found("run")
    (shown,) = await _show(call, place, name, [_skipped_entry(skip)])
    return Answer(shown | {"attempt_list": []})


async def skipped_at(place: Place, at_ms: int, job_ids: Sequence[int]) -> SkipRow | None:
    """Of the range of skipped times that a scheduled time is in, this one alone."""
    skip = await skip_over(place.shard, place.partition_id, at_ms, job_ids) if job_ids else None
    if skip is None:
        return None
    definitions = await definitions_of(place.shard, place.partition_id, [(skip.job_id, skip.version)])
    schedule = definitions[skip.job_id, skip.version].schedule
    if next_time(schedule, at_ms - 1) != at_ms:
        return None
    return skip._replace(from_at_ms=at_ms, to_at_ms=at_ms, skipped=1)


class Entry(NamedTuple):
    """An entry of a job's history: a run, or a range of skipped times, which stands at its last one."""

    run: RunRow
    skip: SkipRow | None = None

    @property
    def position(self) -> tuple[int, int]:
        return self.run.scheduled_at_ms, self.run.job_id


def _skipped_entry(skip: SkipRow) -> Entry:
    return Entry(skip.run, skip)


async def _show(call: Call, place: Place, name: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The entries as they are answered, each told whether its time met a clock change."""
    versions = {(entry.run.job_id, entry.run.version) for entry in entries}
    definitions = await definitions_of(place.shard, place.partition_id, sorted(versions))
    shown = []
    async for entry in in_pieces(entries, SHOWN_PER_TURN):
        run = show_run(name, entry.run, call.now_ms)
        definition = definitions.get((entry.run.job_id, entry.run.version))
        mark = _mark(definition, entry.run)
        if mark is not None:
            run["clock_change"] = mark
        shown.append(run if entry.skip is None else run | show_range(entry.skip.from_at_ms, entry.skip.skipped))
    return shown


def _mark(definition: Definition | None, run: RunRow) -> str | None:
    """How the run's time met a clock change; a run started by hand has no time of the schedule."""
    if definition is None or run.trigger == Trigger.MANUAL:
        return None
    try:
        return mark_of(definition.schedule, run.scheduled_at_ms)
    except CallerError:  # a zone that is gone
        return None


def path_time(call: Call) -> int:
    """The scheduled time in the path; 422 with the spelling if it is none."""
    text = call.path["scheduled_at"]
    try:
        if not PATH_TIME.fullmatch(text):
            raise ValueError
        return parse_time(text)
    except ValueError:
        reading = Reading(call.now_ms)
        reading.fault(
            "/scheduled_at", f"{echo(text)} is not spelled YYYY-MM-DDTHH:MM:SS[.mmm]Z", "2030-01-31T09:00:00Z"
        )
        raise invalid(reading.faults) from None


class _Walk:
    """Walks a name's runs backwards in windows that begin with a day, over all jobs that had the name: in MySQL, and
    below its floor in Cassandra too, where the history is there. ``older_unavailable`` is set once that did not answer.
    """

    def __init__(
        self, call: Call, shard: Shard, jobs: Sequence[Named], state: str | None, from_ms: int | None, to_ms: int | None
    ) -> None:
        self._call = call
        self._now_ms = call.now_ms
        self._shard = shard
        self._past: PastRuns | None = None
        self.older_unavailable = False
        self._jobs = jobs
        self._state = state
        oldest_ms = min(job.created_at_ms for job in jobs) - DAY_MS
        self._from_ms = oldest_ms if from_ms is None else max(oldest_ms, from_ms)
        newest_ms = call.now_ms + PLANNED_AHEAD_MS_MAX
        self._to_ms = newest_ms if to_ms is None else min(newest_ms, to_ms)

    async def page(self, size: int, position: list[int] | None) -> tuple[list[Entry], list[int] | None]:
        """At most ``size`` entries after a position (time, job), and the position reached if there may be more."""
        entries: list[Entry] = []
        to_ms = self._to_ms if position is None else min(self._to_ms, position[0])
        floor_ms = await self._look_below(size)
        window_ms = WINDOW_MS
        for _ in range(WINDOWS_MAX):
            if to_ms < self._from_ms:
                return entries, None
            window_from_ms = max(self._from_ms, to_ms - window_ms + 1)
            rows_max = size - len(entries) + 1
            found = await self._window(window_from_ms, to_ms, rows_max, position)
            above = sum(entry.run.scheduled_at_ms >= floor_ms for entry in _page_order(found, position))
            if window_from_ms < floor_ms and above < rows_max and self._past is not None:
                found, window_from_ms = await self._with_past(self._past, found, window_from_ms, to_ms, rows_max)
            entries += _page_order(found, position)[:rows_max]
            if len(entries) > size:
                return entries[:size], list(entries[size - 1].position)
            if self._past is not None and self._past.short:
                return entries, [window_from_ms, 0]
            to_ms = window_from_ms - 1
            window_ms *= 2 if self._state is None else 1
        return entries, [to_ms + 1, 0]

    async def _look_below(self, size: int) -> int:
        """The shard's floor, below which runs may have left MySQL."""
        history = self._call.service.history
        if history is None or self._state in ("pending", "running"):
            return 0  # what has left MySQL has ended
        states = None if self._state is None else [RunState[self._state.upper()]]
        job_ids = [job.job_id for job in self._jobs]
        self._past = PastRuns(history, self._call.tenant_id, job_ids, states, self._from_ms, size + 2)
        return await read_floor(self._shard)

    async def _with_past(
        self, past: PastRuns, found: list[Entry], from_ms: int, to_ms: int, rows_max: int
    ) -> tuple[list[Entry], int]:
        """The window with what Cassandra has of it, each run once, and the time down to which it is whole."""
        there = {entry.position for entry in found if entry.skip is None} | await self._retried(from_ms, to_ms)
        try:
            older = [Entry(run) for run in await past.window(from_ms, to_ms, rows_max + 1)]
        except HistoryUnavailable:
            self._past, self.older_unavailable = None, True
            return found, from_ms
        both = found + [entry for entry in older if entry.position not in there]
        return [entry for entry in both if entry.run.scheduled_at_ms >= past.known_from_ms], past.known_from_ms

    async def _retried(self, from_ms: int, to_ms: int) -> set[tuple[int, int]]:
        """What was retried after its day had gone stands in MySQL in another state than in Cassandra."""
        gone_ms = await read_gone(self._shard) if self._state is not None else 0
        runs = [
            run
            for job in self._jobs
            if from_ms < gone_ms
            for run in await runs_of_job(
                self._shard, job, _EVERY_STATE, from_ms, min(to_ms, gone_ms - 1), ROWS_READ_MAX
            )
        ]
        return {Entry(run).position for run in runs}

    async def _window(self, from_ms: int, to_ms: int, rows_max: int, position: list[int] | None) -> list[Entry]:
        found: list[Entry] = []
        for job in self._jobs:
            # At the position's own time a job's entry may have been answered already: one more row makes up for it.
            for states, first_ms, last_ms in _stored(self._state, self._now_ms, from_ms, to_ms):
                runs = await runs_of_job(self._shard, job, states, first_ms, last_ms, rows_max + 1)
                found += map(Entry, runs)
            if self._state in (None, "skipped"):
                skips = await skips_of_job(self._shard, job, from_ms, to_ms, rows_max + 1)
                found += map(_skipped_entry, skips)
        return found


def _page_order(found: Sequence[Entry], position: list[int] | None) -> list[Entry]:
    """The newest first, without what stands at the position or before it."""
    rest = [entry for entry in found if position is None or entry.position < tuple(position)]
    return sorted(rest, key=lambda entry: entry.position, reverse=True)


def _stored(state: str | None, now_ms: int, from_ms: int, to_ms: int) -> Iterator[tuple[Sequence[int], int, int]]:
    """Which states to look for in which part of [from, to]: a claimed run is pending until its second."""
    if state is None:
        yield _EVERY_STATE, from_ms, to_ms
    elif state == "pending":
        yield (RunState.WAITING,), from_ms, to_ms
        yield (RunState.RUNNING,), max(from_ms, now_ms + 1), to_ms
    elif state == "running":
        yield (RunState.RUNNING,), from_ms, min(to_ms, now_ms)
    else:
        yield (RunState[state.upper()],), from_ms, to_ms


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
