"""The recorder: the process of a host that writes finished runs to Cassandra, where the history is kept there.

By itself, because the driver has threads of its own and blocks now and then: no call waits behind it. It yields to the
processes that fire.
"""

from __future__ import annotations

import asyncio
import os

from engine.config import Settings
from engine.history.history import History
from engine.history.session import durable_after_ms
from engine.model import mint_worker_id
from engine.seat import Seat
from engine.stages.record_history import RecordHistory
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard

RECORD_INTERVAL_MS = 5_000

# Shards worked on at the same time: two pieces of each are in memory.
SHARDS_AT_ONCE = 2
# Less of a core than an executor gets where both want it.
NICE = 5


class Recorder:
    """Everything of the recorder, from start to stopped."""

    def __init__(self, settings: Settings, seat: Seat) -> None:
        self._settings = settings
        self._seat = seat
        self._events = seat.events
        self._clock = seat.clock

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set."""
        assert self._settings.cassandra  # noqa: S101 - checked before any process was started
        os.nice(NICE)
        history = History(self._settings.cassandra, self._settings.retention_days, self._events)
        history.start()
        shards = [Shard(dsn, index, events=self._events) for index, dsn in enumerate(self._settings.shards)]
        turn = asyncio.Semaphore(SHARDS_AT_ONCE)
        loop = asyncio.get_running_loop()
        starting = [loop.create_task(self._start_shard(shard, history, turn)) for shard in shards]
        self._seat.serve_health()
        await stop.wait()
        for task in starting:
            task.cancel()
        # A piece half written is written again: there is nothing to finish.
        await self._seat.abort_all()
        await history.stop()
        for shard in shards:
            await shard.close()

    async def _start_shard(self, shard: Shard, history: History, turn: asyncio.Semaphore) -> None:
        partitions = await placed_partitions(shard, len(self._settings.shards), self._events)
        stage = RecordHistory(
            shard,
            partitions,
            history,
            mint_worker_id(),
            self._settings.live_days,
            turn,
            self._clock,
            self._events,
            durable_after_ms(self._settings.cassandra_sync_ms),
        )
        self._seat.serve(f"record-{shard.index}", stage.run_once, RECORD_INTERVAL_MS)
