"""Dead letters: the list, and what is done to those that a filter finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from api.fields import Flag, Instant
from api.idempotency import once
from api.names import NAME, NAME_PREFIX
from api.paging import PAGE_SLOTS, next_page_token, page_of
from api.records import Record, Slot
from api.requests import Call
from api.responses import Answer
from engine.errors import StoreUnavailable
from engine.rules.shown import show_run
from engine.rules.timestamps import format_time
from engine.store.dead_letters import (
    NEWEST,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    Position,
    dead_letters,
    delete_dead_letters,
    retry_dead_letters,
)
from engine.store.shard import Shard

# One call acts on at most so many; "more" says whether to call again.
ACTED_ON_MAX = 1_000

_FILTER = {
    "job": Slot(NAME, "Of this job only."),
    "name_prefix": Slot(NAME_PREFIX, "Of jobs whose names begin so."),
    "scheduled_from": Slot(Instant(), "Scheduled at this time or later."),
    "scheduled_to": Slot(Instant(), "Scheduled at this time or earlier."),
}
QUERY = Record("DeadLettersQuery", {**_FILTER, **PAGE_SLOTS}, lambda given, at, reading: given)
ACTION = Record(
    "DeadLetterAction",
    {**_FILTER, "dry_run": Slot(Flag(), "Only count.", default=False)},
    lambda given, at, reading: (_filter(given), given.get("dry_run", False)),
    "All dead letters that the filter finds; the newest first, at most 1,000.",
)


async def list_dead_letters(call: Call) -> Answer:
    """GET /v1/dead-letters"""
    given = call.query(QUERY)
    page = page_of(call, given)
    after = NEWEST if page.position is None else Position(*page.position)
    found, read_to = await _find(call, after, _filter(given), page.size)
    shown = [
        show_run(letter.name, letter.run, call.now_ms) | {"died_at": format_time(letter.position.died_at_ms)}
        for _, letter in found
    ]
    return Answer({"dead_letters": shown, "next_page_token": next_page_token(call, read_to and list(read_to))})


async def retry(call: Call) -> Answer:
    """POST /v1/dead-letters:retry"""
    return await _act(call, retry_dead_letters)


async def delete(call: Call) -> Answer:
    """POST /v1/dead-letters:delete"""
    return await _act(call, delete_dead_letters)


async def _act(call: Call, act: Any) -> Answer:
    wanted, dry_run = await call.fields(ACTION)
    found, read_to = await _find(call, NEWEST, wanted, ACTED_ON_MAX)
    if dry_run:
        return Answer({"count": len(found), "more": read_to is not None})
    answers = await asyncio.gather(*(_act_on_shard(call, shard, found, act) for shard in call.service.placement.shards))
    count = sum(answer.body for answer in answers if answer is not None)
    return Answer({"count": count, "more": read_to is not None})


async def _act_on_shard(call: Call, shard: Shard, found: Sequence[tuple[Shard, DeadLetter]], act: Any) -> Answer | None:
    """This shard's part, once for an Idempotency-Key: a repeat completes what another shard did not do."""
    keys = [letter.position.key for holder, letter in found if holder is shard]
    return await once(call, shard, partial(act, shard, call.tenant_id, keys), Answer)


async def _find(
    call: Call, after: Position, wanted: DeadLetterFilter, size: int
) -> tuple[list[tuple[Shard, DeadLetter]], Position | None]:
    """The next dead letters over all shards, and how far down nothing was left out (None: to the end)."""
    placement = call.service.placement
    if not placement.complete:
        raise StoreUnavailable("not every shard has answered yet")
    pages = await asyncio.gather(
        *(dead_letters(shard, call.tenant_id, after, wanted, size + 1) for shard in placement.shards)
    )
    return _merge(placement.shards, pages, size)


def _merge(
    shards: Sequence[Shard], pages: Sequence[DeadLetterPage], size: int
) -> tuple[list[tuple[Shard, DeadLetter]], Position | None]:
    ends = [page.read_to for page in pages if page.read_to is not None]
    known_to = max(ends) if ends else None
    merged = [
        (shard, letter)
        for shard, page in zip(shards, pages, strict=True)
        for letter in page.letters
        if known_to is None or letter.position >= known_to
    ]
    merged.sort(key=lambda pair: pair[1].position, reverse=True)
    if len(merged) > size:
        return merged[:size], merged[size - 1][1].position
    return merged, known_to


def _filter(given: Mapping[str, Any]) -> DeadLetterFilter:
    return DeadLetterFilter(
        given.get("job"), given.get("name_prefix", ""), given.get("scheduled_from"), given.get("scheduled_to")
    )
