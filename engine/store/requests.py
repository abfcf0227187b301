"""Idempotency keys: the answer to a call, written in the transaction of its effect, so that a repeat has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from engine.store.connection import Connection
from engine.store.shard import Shard

KEPT_MS = 24 * 3_600_000

T = TypeVar("T")

# Runs at the end of a transaction with its result, before COMMIT.
Finish = Callable[[Connection, T], Awaitable[None]]


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
    answer = await shard.execute("request_by_key", {"tenant_id": once.tenant_id, "key_hash": once.key_hash})
    if not answer.rows:
        return None
    body_hash, status, stored = answer.rows[0]
    return Recorded(bytes(body_hash) == once.body_hash, status, bytes(stored))


async def record(connection: Connection, once: Once, status: int, answer: bytes, bytes_max: int) -> None:
    """Put the answer on record; Duplicate if another call with this key was first: then nothing of this one stands."""
    now_ms = int((await connection.execute("shard_now")).rows[0][0])
    row = (*once, status, answer, now_ms)
    await connection.execute_rows("insert_requests", [row], bytes_max=bytes_max)


async def delete_old_requests(shard: Shard, now_ms: int, rows_max: int) -> int:
    """Forget what is older than KEPT_MS; returns how many were forgotten."""
    answer = await shard.execute("delete_old_requests", {"before": now_ms - KEPT_MS, "rows_max": rows_max})
    return answer.found
