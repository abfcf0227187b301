"""A fleet's creation on its shards, and the check that shards and settings belong together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import NamedTuple

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


async def create_fleet(shards: Sequence[Shard], partition_count: int) -> None:
    """Make these empty, migrated shards a fleet. Goes on where it stopped; does nothing to a complete one.

    Raises OperatorError where a shard belongs to another fleet, place, shard count or partition count.
    """
    rows = [await read_fleet(shard) for shard in shards]
    known = [row for row in rows if row is not None]
    fleet_id = known[0].fleet_id if known else uuid.uuid4().bytes
    for shard, row in zip(shards, rows, strict=True):
        wanted = FleetRow(fleet_id, shard.index, len(shards), partition_count)
        if row is None:
            await _create_on(shard, wanted)
        else:
            _compare(shard, row, wanted)


async def check_fleet(shards: Sequence[Shard]) -> FleetRow:
    """The fleet of these shards, each in its place; OperatorError if one is missing, foreign or out of order."""
    rows = [await read_fleet(shard) for shard in shards]
    first = rows[0]
    for shard, row in zip(shards, rows, strict=True):
        if row is None or first is None:
            raise OperatorError(f"{shard.dsn}: no fleet was created here; run: secondzero migrate --shard …")
        _compare(shard, row, FleetRow(first.fleet_id, shard.index, len(shards), first.partition_count))
    assert first is not None  # noqa: S101 - checked above
    return first


async def read_fleet(shard: Shard) -> FleetRow | None:
    """The shard's fleet row; None before creation."""
    rows = (await shard.execute("fleet")).rows
    return FleetRow(*rows[0]) if rows else None


async def placed_partitions(shard: Shard, events: Events) -> list[int]:
    """The partitions of a shard, asked until it answers: an engine may start before its database."""
    while True:
        try:
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


def _compare(shard: Shard, row: FleetRow, wanted: FleetRow) -> None:
    for what in ("shard_count", "partition_count", "shard_index"):
        found, asked = getattr(row, what), getattr(wanted, what)
        if found != asked:
            name = what.replace("_", " ")
            raise OperatorError(f"{shard.dsn}: created with {name} {found}, now started with {asked}; it is fixed for life")
    if row.fleet_id != wanted.fleet_id:
        raise OperatorError(f"{shard.dsn}: belongs to another fleet than the first shard; check the --shard list")
