"""The list of a tenant's jobs: pages in name order, merged over the shards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from api.definitions import JOB_STATES
from api.echo import echo
from api.fields import Choice, Instant, Reading
from api.job_shown import next_run_at, show_job
from api.names import LABEL_NAME, LABEL_VALUE, NAME_PREFIX
from api.paging import PAGE_SLOTS, next_page_token, page_of
from api.pieces import in_pieces
from api.records import ListOf, Record, Slot
from api.requests import Call
from api.responses import Answer
from engine.errors import StoreUnavailable
from engine.model import Definition, JobState
from engine.store.jobs import JobRow, jobs_by_key
from engine.store.lists import JobFilter, NamePage, job_names
from engine.store.shard import Shard

LABELS_MAX = 16
# Definitions are read in such chunks until the page has this size; then it answers short.
CHUNK_JOBS = 100
PAGE_BYTES_MAX = 8 << 20
# A job takes some 50 µs to be shown: a page of a thousand would hold up everybody's calls.
SHOWN_PER_TURN = 50


class LabelText:
    """A label's name, a colon and its value."""

    def read(self, value: Any, at: str, reading: Reading) -> tuple[str, str] | None:
        name, colon, label_value = value.partition(":")
        if not colon:
            reading.fault(at, f"{echo(value)} is not a name, a colon and a value", "team:billing")
            return None
        LABEL_NAME.read(name, at, reading)
        LABEL_VALUE.read(label_value, at, reading)
        return name, label_value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[^:]+:", "examples": ["team:billing"]}


QUERY = Record(
    "JobsQuery",
    {
        "state": Slot(Choice({state: state for state in JOB_STATES})),
        "label": Slot(ListOf(LabelText(), LABELS_MAX), "Given more than once, every one must hold."),
        "name_prefix": Slot(NAME_PREFIX),
        "next_run_before": Slot(Instant()),
        **PAGE_SLOTS,
    },
    lambda given, at, reading: given,
)


class Found(NamedTuple):
    """A job's name and where its row is."""

    name: str
    shard: Shard
    key: tuple[int, int]


async def list_jobs(call: Call) -> Answer:
    """GET /v1/jobs"""
    given = call.query(QUERY)
    page = page_of(call, given)
    wanted = _filter(given)
    found, read_to = await find_names(call, wanted, page.position or "", page.size)
    jobs, complete_to = await _load(call, found)
    if wanted.next_before_ms is not None:
        jobs = [job for job in jobs if _next_run_is_before(job, wanted.next_before_ms, call.now_ms)]
    token = next_page_token(call, complete_to or read_to)
    shown = [show_job(call, job) async for job in in_pieces(jobs, SHOWN_PER_TURN)]
    return Answer({"jobs": shown, "next_page_token": token})


async def find_names(call: Call, wanted: JobFilter, after: str, size: int) -> tuple[list[Found], str | None]:
    """The next names over all shards, and the name up to which nothing was left out (None: to the end)."""
    fleet = call.service.placement
    if not fleet.complete:
        raise StoreUnavailable("not every shard has answered yet")
    pages = await asyncio.gather(
        *(job_names(shard, call.tenant_id, after, wanted, size + 1, call.now_ms) for shard in fleet.shards)
    )
    return _merge(fleet.shards, pages, size)


def _merge(shards: Sequence[Shard], pages: Sequence[NamePage], size: int) -> tuple[list[Found], str | None]:
    ends = [page.read_to for page in pages if page.read_to is not None]
    known_to = min(ends) if ends else None
    merged = sorted(
        (Found(name, shard, (partition_id, job_id)) for shard, page in zip(shards, pages, strict=True)
         for name, partition_id, job_id in page.names if known_to is None or name <= known_to),
        key=lambda found: found.name,
    )  # fmt: skip
    if len(merged) > size:
        return merged[:size], merged[size - 1].name
    return merged, known_to


async def _load(call: Call, found: Sequence[Found]) -> tuple[list[JobRow], str | None]:
    """The jobs in order; a name where the page is full of bytes before it is full of jobs."""
    loaded: list[JobRow] = []
    bytes_read = 0
    for start in range(0, len(found), CHUNK_JOBS):
        chunk = found[start : start + CHUNK_JOBS]
        rows = await load_jobs(call, chunk)
        loaded += [rows[each.name] for each in chunk if each.name in rows]
        bytes_read += sum(len(row.definition) for row in rows.values())
        if bytes_read > PAGE_BYTES_MAX and start + CHUNK_JOBS < len(found):
            return loaded, chunk[-1].name
    return loaded, None


async def load_jobs(call: Call, found: Sequence[Found]) -> dict[str, JobRow]:
    """Jobs by name; one that was deleted meanwhile is left out."""
    by_shard: dict[Shard, list[tuple[int, int]]] = {}
    for each in found:
        by_shard.setdefault(each.shard, []).append(each.key)
    loaded = await asyncio.gather(*(jobs_by_key(shard, call.tenant_id, keys) for shard, keys in by_shard.items()))
    return {row.name: row for rows in loaded for row in rows}


def _filter(given: Mapping[str, Any]) -> JobFilter:
    word = given.get("state")
    state = None if word is None else JobState.ACTIVE if word == "finished" else JobState[word.upper()]
    return JobFilter(
        state,
        word == "finished" if state == JobState.ACTIVE else None,
        given.get("name_prefix", ""),
        given.get("next_run_before"),
        tuple(sorted(set(given.get("label", ())))),
    )


def _next_run_is_before(job: JobRow, before_ms: int, now_ms: int) -> bool:
    """Exact, where the row only has the first time not yet planned."""
    next_ms = next_run_at(job, Definition.salvage(job.definition), now_ms)
    return next_ms is not None and next_ms < before_ms
