"""Idempotency-Key: a POST that is sent again has no second effect and gets the first answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import orjson
from starlette.requests import Request

from api.errors import BAD_REQUEST, IN_PROGRESS, INVALID, RETRY_AFTER_S, Problem
from api.requests import Call
from api.responses import Answer
from engine.keys import Keys, Sealed
from engine.store.connection import Connection, Duplicate
from engine.store.requests import Finish, Once, Recorded, do_nothing, record, recorded
from engine.store.shard import Shard

if TYPE_CHECKING:
    from api.service import Service

HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

T = TypeVar("T")


async def once(
    call: Call,
    shard: Shard,
    act: Callable[[Finish[T]], Awaitable[T | None]],
    render: Callable[[T], Answer],
    part: str = "",
    secret: bool = False,
) -> Answer | None:
    """The effect and its answer; for a call that was made before, its first answer.

    ``act`` runs one transaction that ends with the given finish; None if there was nothing to act on: that is not kept.
    ``part`` tells apart what one call does in several transactions. A ``secret`` answer is kept sealed.
    """
    asked = once_of(call, part)
    if asked is None:
        result = await act(do_nothing)
        return None if result is None else render(result)
    found = await recorded(shard, asked)
    if found is None:
        found_or_answer = await _first(shard, asked, act, keeping(shard, asked, render, secret), render)
        if not isinstance(found_or_answer, Recorded):
            return found_or_answer
        found = found_or_answer
    return again(_opened(found, shard.keys, asked) if secret else found)


def once_of(call: Call, part: str = "") -> Once | None:
    """What names this call, if it has an Idempotency-Key; 400 if that is malformed."""
    key = call.request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Problem(BAD_REQUEST, "Idempotency-Key must have 1 to 255 visible ASCII characters")
    named = orjson.dumps([call.request.scope["path"], key, part])
    return Once(call.tenant_id, hashlib.sha256(named).digest(), hashlib.sha256(call.body).digest())


@contextmanager
def one_at_a_time(service: Service, request: Request, tenant_id: int) -> Iterator[None]:
    """409 while the same call is being carried out here. (On another host it waits for the job's lock, and then finds
    the answer.)"""
    key = request.headers.get(HEADER) if request.method == "POST" else None
    if key is None:
        yield
        return
    named = tenant_id, request.scope["path"], key
    if named in service.in_progress:
        detail = "a call with this Idempotency-Key has not been answered yet"
        raise Problem(IN_PROGRESS, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
    service.in_progress.add(named)
    try:
        yield
    finally:
        service.in_progress.discard(named)


async def claim_key(call: Call) -> None:
    """For a call of several transactions: its Idempotency-Key belongs to this body from now on; 422 to another one."""
    asked = once_of(call)
    if asked is None:
        return
    shard = call.service.placement.place(call.tenant_id, call.request.headers[HEADER]).shard
    found = await recorded(shard, asked)
    if found is None:
        try:
            async with shard.transaction() as connection:
                await record(connection, [(asked, 0, b"")], shard.packet_bytes_max)
        except Duplicate:  # another one was first, at the same moment
            found = await recorded(shard, asked)
    if found is not None and not found.same_body:
        raise _another_body()


def keeping(shard: Shard, asked: Once | None, render: Callable[[T], Answer], secret: bool = False) -> Finish[T]:
    """The end of a transaction that puts its answer on record, sealed or not, if it was asked for with a key."""
    if asked is None:
        return do_nothing

    async def finish(connection: Connection, result: T) -> None:
        once, status, answer = kept(asked, render(result))
        answer = shard.keys.seal(answer, once.key_hash).encode() if secret else answer
        await record(connection, [(once, status, answer)], shard.packet_bytes_max)

    return finish


async def _first(
    shard: Shard,
    asked: Once,
    act: Callable[[Finish[T]], Awaitable[T | None]],
    finish: Finish[T],
    render: Callable[[T], Answer],
) -> Answer | Recorded | None:
    try:
        result = await act(finish)
    except Duplicate:  # the same call was first, at the same moment
        found = await recorded(shard, asked)
        if found is None:
            raise
        return found
    return None if result is None else render(result)


_PLAIN = b"["  # an answer is a JSON array; what is sealed begins with a key id


def _opened(found: Recorded, keys: Keys, asked: Once) -> Recorded:
    if found.answer.startswith(_PLAIN):  # of the day before secrets were encrypted here
        return found
    return found._replace(answer=keys.open(Sealed.parse(found.answer), asked.key_hash))


def kept(asked: Once, answer: Answer) -> tuple[Once, int, bytes]:
    """An answer as it is put on record."""
    return asked, answer.status, orjson.dumps([dict(answer.headers), answer.body])


def again(found: Recorded) -> Answer:
    """The answer on record; 422 if the call said something else then."""
    if not found.same_body:
        raise _another_body()
    headers, body = orjson.loads(found.answer)
    return Answer(body, found.status, headers)


def _another_body() -> Problem:
    return Problem(INVALID, "this Idempotency-Key was used with another body")
