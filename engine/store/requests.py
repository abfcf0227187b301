"""Idempotency keys: the answer to a call, written in the transaction of its effect, so that a repeat has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from engine.store.connection import Connection
from engine.store.shard import Shard

KEPT_MS = 24 * 3_600_000

T = TypeVar("T")

# Runs at the end of a transaction with its result, before COMMIT.
Finish = Callable[[Connection, T], Awaitable[None]]


async def do_nothing(connection: Connection, result: object) -> None:
    """The end of a transaction whose answer need not be on record."""


class Once(NamedTuple):
    """A call that is to have its effect once: hashes of what names it, and of what it says."""

    tenant_id: int
    key_hash: bytes
    body_hash: bytes


class Recorded(NamedTuple):
    """What was answered the first time; ``same_body`` tells whether the call said the same then."""

    same_body: bool
    status: int
    answer: bytes


async def recorded(shard: Shard, once: Once) -> Recorded | None:
    """The answer on record, or None if the call had no effect here yet."""
    return (await recorded_of(shard, [once])).get(once)


async def recorded_of(shard: Shard, asked: Sequence[Once]) -> dict[Once, Recorded]:
    """The answers on record among these."""
    keys = sorted((once.tenant_id, once.key_hash) for once in asked)
    async with shard.connection() as connection:
        rows = await connection.fetch_rows("requests_by_key", keys, bytes_max=shard.packet_bytes_max)
    stored = {bytes(row[0]): row[1:] for row in rows}
    found = {}
    for once in asked:
        if once.key_hash in stored:
            body_hash, status, answer = stored[once.key_hash]
            found[once] = Recorded(bytes(body_hash) == once.body_hash, status, bytes(answer))
    return found


async def record(connection: Connection, answers: Sequence[tuple[Once, int, bytes]], bytes_max: int) -> None:
    """Put (call, status, answer) on record; Duplicate if another call with a key was first: then nothing stands."""
    now_ms = int((await connection.execute("shard_now")).rows[0][0])
    rows = sorted((*once, status, answer, now_ms) for once, status, answer in answers)
    await connection.execute_rows("insert_requests", rows, bytes_max=bytes_max)


async def record_missing(shard: Shard, answers: Sequence[tuple[Once, int, bytes]]) -> None:
    """Put on record what is not yet: answers that came with no effect."""
    now_ms = await shard.now_ms()
    rows = sorted((*once, status, answer, now_ms) for once, status, answer in answers)
    async with shard.connection() as connection:
        await connection.execute_rows("insert_missing_requests", rows, bytes_max=shard.packet_bytes_max)


async def delete_old_requests(shard: Shard, now_ms: int, rows_max: int) -> int:
    """Forget what is older than KEPT_MS; returns how many were forgotten."""
    answer = await shard.execute("delete_old_requests", {"before": now_ms - KEPT_MS, "rows_max": rows_max})
    return answer.found
