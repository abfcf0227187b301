"""A fleet's creation on its shards, and the check that shards and settings belong together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.config import NEW_FLEET_HISTORY, NEW_FLEET_PARTITIONS, Dsn
from engine.errors import OperatorError, StoreUnavailable
from engine.events import Events
from engine.rules.placement import shard_of
from engine.store.connection import Connection
from engine.store.shard import Shard

DAY_MS = 86_400_000
RETRY_S = 1.0


class FleetRow(NamedTuple):
    """What a shard says it is part of."""

    fleet_id: bytes
    shard_index: int
    shard_count: int
    partition_count: int
    history: str = NEW_FLEET_HISTORY


async def create_fleet(
    shards: Sequence[Shard], partition_count: int | None = None, history: str | None = None
) -> bool:
    """Make these migrated shards a fleet; goes on where it stopped, and returns False if there was nothing to do.

    Raises OperatorError, before anything is written, where a shard belongs to another fleet, place, shard count or
    partition count, or keeps its history elsewhere. Where none is given, an old fleet keeps its own and a new one gets
    NEW_FLEET_PARTITIONS and NEW_FLEET_HISTORY.
    """
    rows = [await read_fleet(shard) for shard in shards]
    wanted = _wanted(rows, partition_count, history)
    _compare([shard.dsn for shard in shards], rows, wanted)
    missing = [shard for shard, row in zip(shards, rows, strict=True) if row is None]
    for shard in missing:
        await _create_on(shard, wanted[shard.index])
    return bool(missing)


async def refuse_other_fleet(
    dsns: Sequence[Dsn], partition_count: int | None = None, history: str | None = None
) -> FleetRow:
    """The same refusals for databases that may not be migrated, or not even there: before any of them is touched.

    Returns the row that the first shard has or would get.
    """
    rows = [await _read_fleet_of(dsn) for dsn in dsns]
    wanted = _wanted(rows, partition_count, history)
    _compare(dsns, rows, wanted)
    return wanted[0]


async def check_fleet(shards: Sequence[Shard], shard_count: int | None = None) -> FleetRow:
    """The fleet of these shards, each in its place; OperatorError if one is missing, foreign or out of order. Where
    some are left out, ``shard_count`` says how many there are."""
    rows = [await read_fleet(shard) for shard in shards]
    for shard, row in zip(shards, rows, strict=True):
        if row is None:
            raise OperatorError(f"{shard.dsn}: no fleet was created here; run: secondzero migrate --shard …")
    first = rows[0]
    assert first is not None  # noqa: S101 - checked above
    count = shard_count or len(shards)
    wanted = [first._replace(shard_index=shard.index, shard_count=count) for shard in shards]
    _compare([shard.dsn for shard in shards], rows, wanted)
    return first


async def read_fleet(shard: Shard) -> FleetRow | None:
    """The shard's fleet row; None before creation."""
    rows = (await shard.execute("fleet")).rows
    return FleetRow(*rows[0][1:]) if rows else None


async def _read_fleet_of(dsn: Dsn) -> FleetRow | None:
    server = Shard(replace(dsn, database=""), 0)
    shard = Shard(dsn, 0)
    try:
        there = (await server.execute("fleet_table_exists", {"database": dsn.database})).rows[0][0]
        return await read_fleet(shard) if there else None
    finally:
        await server.close()
        await shard.close()


def _wanted(
    rows: Sequence[FleetRow | None], partition_count: int | None, history: str | None
) -> list[FleetRow]:
    first = rows[0] or FleetRow(uuid.uuid4().bytes, 0, len(rows), NEW_FLEET_PARTITIONS)
    row = FleetRow(
        first.fleet_id, 0, len(rows), partition_count or first.partition_count, history or first.history
    )
    return [row._replace(shard_index=index) for index in range(len(rows))]


async def placed_partitions(shard: Shard, shard_count: int, events: Events) -> list[int]:
    """The partitions of a shard, asked until it answers: an engine may start before its database. OperatorError if it
    is not this shard of a fleet of so many."""
    while True:
        try:
            await check_fleet([shard], shard_count)
            return [row[0] for row in (await shard.execute("placed_partitions")).rows]
        except StoreUnavailable as error:
            events.emit("stage.unavailable", stage="start", error=str(error))
            await asyncio.sleep(RETRY_S)


async def _create_on(shard: Shard, row: FleetRow) -> None:
    """One transaction, so that a shard is created whole or not at all."""
    now_ms = await shard.now_ms()
    day_ms = now_ms - now_ms % DAY_MS
    partitions = [number for number in range(row.partition_count) if shard_of(number, row.shard_count) == shard.index]
    async with shard.transaction() as connection:
        await connection.execute("create_floor", {"floor_at": day_ms - DAY_MS})
        await _insert(shard, connection, "create_partitions", [(number, 1) for number in partitions])
        await _insert(shard, connection, "create_marks", [(number, now_ms) for number in partitions])
        await _insert(shard, connection, "create_leases", [(number, None, 0) for number in partitions])
        await connection.execute("create_fleet", row._asdict())


async def _insert(shard: Shard, connection: Connection, name: str, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        await connection.execute_rows(name, rows, bytes_max=shard.packet_bytes_max)


def _compare(dsns: Sequence[Dsn], rows: Sequence[FleetRow | None], wanted: Sequence[FleetRow]) -> None:
    if rows[0] is None and any(rows):
        # A fleet is created from the first shard on, so this one was not the first, or its data is lost.
        raise OperatorError(f"{dsns[0]}: empty, but another shard holds a fleet; give the shards in their order")
    for dsn, found, asked in zip(dsns, rows, wanted, strict=True):
        problem = _difference(found, asked) if found else None
        if problem:
            raise OperatorError(f"{dsn}: {problem}")


def _difference(found: FleetRow, asked: FleetRow) -> str | None:
    for what in ("shard_count", "partition_count", "history"):
        was, now = getattr(found, what), getattr(asked, what)
        if was != now:
            return f"created with {what.replace('_', ' ')} {was}, now started with {now}; it is fixed for life"
    if found.fleet_id != asked.fleet_id:
        return "belongs to another fleet than the first shard; check the --shard list"
    if found.shard_index != asked.shard_index:
        return (
            f"is number {found.shard_index + 1} of the fleet's shards, not {asked.shard_index + 1}; give them in order"
        )
    return None
