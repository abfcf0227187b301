"""Which shard holds a job's partition, read from the shards themselves; one that is away at first is asked again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from engine.errors import OperatorError, StoreUnavailable
from engine.model import partition_of
from engine.store.fleet import FleetRow, read_fleet
from engine.store.shard import Shard


class Place(NamedTuple):
    """Where a job of some tenant and name lives, whether there is one or not."""

    shard: Shard
    partition_id: int


class Placement:
    """The shards in their order, and what each of them holds."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self.partition_count = 0
        self.fleet: FleetRow | None = None
        self._fleet_id = b""
        self._holders: dict[int, Shard] = {}

    @property
    def first(self) -> Shard:
        """The shard with tenants, keys, secrets and limits."""
        return self.shards[0]

    @property
    def complete(self) -> bool:
        """Whether every partition's shard is known."""
        return 0 < self.partition_count == len(self._holders)

    def place(self, tenant_id: int, name: str) -> Place:
        """Where this job belongs; StoreUnavailable while that shard has not answered."""
        if not self.partition_count:
            raise StoreUnavailable("no shard has answered yet")
        partition_id = partition_of(tenant_id, name, self.partition_count)
        return Place(self.shard_of(partition_id), partition_id)

    def shard_of(self, partition_id: int) -> Shard:
        """Who holds a partition; StoreUnavailable while that shard has not answered."""
        shard = self._holders.get(partition_id)
        if shard is None:
            raise StoreUnavailable(f"the shard of partition {partition_id} has not answered yet")
        return shard

    def derived_key(self, purpose: str) -> bytes:
        """32 bytes that every process of this fleet has and nobody outside, other ones for each purpose."""
        if not self._fleet_id:
            raise StoreUnavailable("no shard has answered yet")
        return _derived(self._fleet_id, purpose)

    async def read(self) -> None:
        """Ask every shard which partitions it holds; OperatorError where the shards are no fleet in its order."""
        await asyncio.gather(*map(self._read_shard, self.shards))

    async def close(self) -> None:
        await asyncio.gather(*(shard.close() for shard in self.shards))

    async def _read_shard(self, shard: Shard) -> None:
        try:
            row = await read_fleet(shard)
            placed = await shard.execute("placed_partitions")
        except StoreUnavailable:
            return
        self._check(shard, row)
        self._holders |= {partition_id: shard for (partition_id,) in placed.rows}

    def _check(self, shard: Shard, row: FleetRow | None) -> None:
        if row is None:
            raise OperatorError(f"{shard.dsn}: no fleet was created here; run: secondzero migrate --shard …")
        place = f"number {row.shard_index + 1} of {row.shard_count} shards"
        if (row.shard_index, row.shard_count) != (shard.index, len(self.shards)):
            raise OperatorError(f"{shard.dsn}: is {place}, not number {shard.index + 1} of {len(self.shards)}")
        if self._fleet_id not in (b"", row.fleet_id):
            raise OperatorError(f"{shard.dsn}: belongs to another fleet; check the --shard list")
        self._fleet_id, self.partition_count, self.fleet = bytes(row.fleet_id), row.partition_count, row


@lru_cache
def _derived(fleet_id: bytes, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=fleet_id, digest_size=32).digest()
