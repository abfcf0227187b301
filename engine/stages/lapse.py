"""Lapse: runs are taken from workers that are silent, whose time is over, or that were told of a cancel and went on.

A lease is judged by the shard's time. Workers renew theirs through the doors, so a silence counts only after some door
has stood open on this shard for a whole lease without a gap: a MySQL or an API that was away must not give every run in
a worker's hands to another. A cancel and the end of a run's time need no such proof.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from engine.clock import Clock
from engine.events import Events
from engine.model import Definition, RunKey, RunState, is_door
from engine.rules.lanes import held_lane
from engine.rules.work import LEASE_MS, lapse_of
from engine.stages.settlements import Settlement
from engine.stages.versions import LEASE_BEYOND_TIMEOUT_MS, Versions
from engine.stages.work_ends import Ends, lock_work
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import Value

RUNS_PER_BATCH = 1_000

# A door that has not been seen for this long is shut; it shows itself far more often.
DOOR_GAP_MS = 6_000


class LapsedWork:
    """Takes back what workers have lost, on one shard. Several at once are harmless: every write is fenced."""

    def __init__(
        self,
        shard: Shard,
        all_partitions: Sequence[int],
        versions: Versions,
        is_told: Callable[[int, Definition], bool],
        clock: Clock,
        events: Events,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._shard = shard
        self._lanes = [held_lane(partition_id) for partition_id in all_partitions]
        self._ends = Ends(shard, versions, is_told, events, draw)
        self._clock = clock
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        """One batch; True if there may be more."""
        self._clock.follow(await self._shard.now_ms(), self._shard.index)
        now_ms = self._clock.now_ms()
        values: dict[str, Value] = {
            "lanes": self._lanes,
            "now_ms": now_ms,
            "silence_counts": int(await self._silence_counts(now_ms)),
            "over_before": now_ms + LEASE_BEYOND_TIMEOUT_MS,
            "rows_max": RUNS_PER_BATCH,
        }
        rows = (await self._shard.execute("lapsed_work", values)).rows
        if not rows:
            return False
        settled = await self._shard.retrying(lambda: self._take_back([RunKey(*row) for row in rows], now_ms))
        self._ends.tell(settled)
        if settled:
            self._events.emit("work.lapsed", runs=len(settled), shard=self._shard.index)
        return len(rows) == RUNS_PER_BATCH

    async def _silence_counts(self, now_ms: int) -> bool:
        (row,) = (await self._shard.execute("open_doors", {"seen_from": now_ms - DOOR_GAP_MS})).rows
        return row[0] is not None and row[0] <= now_ms - LEASE_MS

    async def _take_back(self, keys: Sequence[RunKey], now_ms: int) -> list[Settlement]:
        async with self._shard.transaction() as connection:
            rows = await lock_work(connection, keys, self._shard.packet_bytes_max)
            over = await self._still_over(connection, keys, now_ms)
            ends = {
                key: (row, lapse_of(bool(row.cancel_requested), now_ms, row.deadline_ms))
                for key, row in rows.items()
                if key in over and row.state == RunState.RUNNING and is_door(row.worker_id)
            }
            return await self._ends.write_locked(connection, ends, now_ms) if ends else []

    async def _still_over(self, connection: Connection, keys: Sequence[RunKey], now_ms: int) -> set[RunKey]:
        """A heartbeat may have been faster."""
        rows = await connection.fetch_rows(
            "leases_over", sorted(keys), {"now_ms": now_ms}, bytes_max=self._shard.packet_bytes_max
        )
        return {RunKey(*row) for row in rows}
