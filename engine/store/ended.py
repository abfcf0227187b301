"""Ended runs that leave MySQL row by row: those that were retried after their day had gone."""

from __future__ import annotations

from collections.abc import Sequence

from engine.store.shard import Shard
from engine.store.statements import time_bounds

# A run's key and its attempt.
Fence = tuple[int, int, int, int]


async def delete_ended(shard: Shard, runs: Sequence[Fence]) -> int:
    """Delete these with all that belongs to them, but for those that have been retried once more; returns how many."""

    async def transaction() -> int:
        async with shard.transaction() as connection:
            bytes_max = shard.packet_bytes_max
            bounds = time_bounds(runs)
            rows = await connection.fetch_rows("lock_ended_runs", sorted(runs), bounds, bytes_max=bytes_max)
            keys = sorted(row[:3] for row in rows)
            if keys:
                for name in ("delete_attempts_of_runs", "delete_reports_of_runs", "delete_runs"):
                    await connection.execute_rows(name, keys, bounds, bytes_max=bytes_max)
            return len(keys)

    return await shard.retrying(transaction)
