"""Many puts and deletes in one call: each is carried out and answered like a call of its own, in the order given."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from api.definitions import JOB
from api.errors import INTERNAL, invalid
from api.fields import Reading
from api.idempotency import HEADER, again, claim_key, kept, once_of
from api.jobs import Terms, create_many, delete_one, put_one
from api.names import NAME
from api.records import ListOf, ReadLater, Record, Slot
from api.requests import Call
from api.responses import Answer
from engine.errors import Fault, StoreUnavailable
from engine.store.requests import Once, record_missing, recorded_of
from engine.store.shard import Shard

ITEMS_MAX = 1_000
BODY_BYTES_MAX = 8 << 20
# Edits and deletes of one call that are under way at the same time; other calls need connections too.
CHANGES_AT_ONCE = 4

PUT_ITEM = Record(
    "BatchPut",
    {"name": Slot(NAME, required=True), "job": Slot(ReadLater(JOB), required=True)},
    lambda given, at, reading: (given["name"], given["job"]),
)
BATCH = Record(
    "Batch",
    {
        "puts": Slot(ListOf(PUT_ITEM, ITEMS_MAX), "Each like a PUT without preconditions."),
        "deletes": Slot(ListOf(NAME, ITEMS_MAX), "Names of jobs to delete."),
    },
    lambda given, at, reading: _read_batch(given, at, reading),
    f"At most {ITEMS_MAX} puts and deletes together; no name twice.",
)

Act = Callable[[Terms], Awaitable[Answer]]


async def batch(call: Call) -> Answer:
    """POST /v1/jobs:batch"""
    document = await call.json(BODY_BYTES_MAX)
    reading = Reading(call.now_ms)
    read = BATCH.read(document, "", reading)
    if read is None:
        raise invalid(reading.faults)
    await claim_key(call)
    puts, deletes = read
    return Answer({"results": await _carry_out(call, dict(puts), deletes)})


async def _carry_out(call: Call, puts: Mapping[str, Any], deletes: Sequence[str]) -> list[dict[str, Any]]:
    """What is new is created together; what then is left, each like a call of its own."""
    acts: dict[str, Act] = {name: partial(put_one, call, name, job) for name, job in puts.items()}
    acts |= {name: partial(delete_one, call, name) for name in deletes}
    lane = asyncio.Semaphore(CHANGES_AT_ONCE)
    has_key = HEADER in call.request.headers
    asked = {name: once_of(call, name) if has_key else None for name in acts}
    earlier = await _earlier(call, asked)
    done = await create_many(call, {name: job for name, job in puts.items() if name not in earlier}, asked)
    results = {name: _shown(call, name, answer) for name, answer in (earlier | done).items()}
    left = {name: act for name, act in acts.items() if name not in results}
    answers = await asyncio.gather(
        *(act(Terms(asked=asked[name], lane=lane)) for name, act in left.items()), return_exceptions=True
    )
    results |= {name: _shown(call, name, answer) for name, answer in zip(left, answers, strict=True)}
    if has_key:
        await _keep(call, asked, {name: result for name, result in results.items() if name not in earlier})
    return [results[name] for name in acts]


async def _earlier(call: Call, asked: Mapping[str, Once | None]) -> dict[str, Answer | Exception]:
    """What of this very call was done before, when it was sent with its Idempotency-Key the first time."""
    by_shard: dict[Shard, dict[Once, str]] = {}
    for name, once in asked.items():
        if once is not None:
            by_shard.setdefault(call.service.placement.place(call.tenant_id, name).shard, {})[once] = name
    answers: dict[str, Answer | Exception] = {}
    for shard, names in by_shard.items():
        try:
            for once, found in (await recorded_of(shard, list(names))).items():
                answers[names[once]] = again(found)
        except StoreUnavailable as error:  # nobody knows what was done there: its items wait for the next repeat
            answers |= dict.fromkeys(names.values(), error)
    return answers


async def _keep(call: Call, asked: Mapping[str, Once | None], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Also what changed nothing is answered the same again: a name that was free is another's job by then."""
    by_shard: dict[Shard, list[tuple[Once, int, bytes]]] = {}
    for name, result in results.items():
        once = asked[name]
        if once is not None and result["status"] < INTERNAL.status:
            shard = call.service.placement.place(call.tenant_id, name).shard
            answer = Answer(result.get("job", result.get("problem")), result["status"])
            by_shard.setdefault(shard, []).append(kept(once, answer))
    for shard, answers in by_shard.items():
        with suppress(StoreUnavailable):
            await record_missing(shard, answers)


def _shown(call: Call, name: str, answer: Answer | BaseException) -> dict[str, Any]:
    """One item's result; a problem of one is no other's."""
    if isinstance(answer, Answer):
        return {"name": name, "status": answer.status, "job" if answer.status < 400 else "problem": answer.body}
    problem = call.problem_of_one(answer)
    return {"name": name, "status": problem.kind.status, "problem": problem.document()}


def _read_batch(given: Mapping[str, Any], at: str, reading: Reading) -> tuple[Sequence[Any], Sequence[str]]:
    puts, deletes = given.get("puts", []), given.get("deletes", [])
    if len(puts) + len(deletes) > ITEMS_MAX:
        reading.fault(at, f"at most {ITEMS_MAX} puts and deletes together, not {len(puts) + len(deletes)}")
    named = Counter([name for name, _ in puts] + list(deletes))
    reading.faults += [Fault(at, f"the name {name} stands twice") for name, count in named.items() if count > 1]
    return puts, deletes
