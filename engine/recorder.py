"""The recorder: the process of a host that writes finished runs to Cassandra, where the history is kept there.

By itself, because the driver has threads of its own and blocks now and then: no call waits behind it. It yields to the
processes that fire.
"""

from __future__ import annotations

import asyncio
import os

from engine.clock import SystemClock
from engine.config import Settings
from engine.events import Events
from engine.health import Board, Report
from engine.history.history import History
from engine.history.session import durable_after_ms
from engine.metrics import Metrics
from engine.model import mint_worker_id
from engine.service import RunOnce, Service
from engine.stages.record_history import RecordHistory
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard

RECORD_INTERVAL_MS = 5_000
HEALTH_INTERVAL_MS = 500

# Shards worked on at the same time: two pieces of each are in memory.
SHARDS_AT_ONCE = 2
# Less of a core than an executor gets where both want it.
NICE = 5


class Recorder:
    """Everything of the recorder, from start to stopped."""

    def __init__(
        self, settings: Settings, board: Board, slot: int, events: Events, metrics: Metrics, clock: SystemClock
    ) -> None:
        self._settings = settings
        self._board = board
        self._slot = slot
        self._events = events
        self._clock = clock
        self._report = Report("recorder", clock, metrics)
        self._services: list[Service] = []

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
        self._serve("health", self._write_health, HEALTH_INTERVAL_MS)
        await stop.wait()
        for task in starting:
            task.cancel()
        # A piece half written is written again: there is nothing to finish.
        await asyncio.gather(*(service.abort() for service in self._services))
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
        self._serve(f"record-{shard.index}", stage.run_once, RECORD_INTERVAL_MS)

    def _serve(self, name: str, run_once: RunOnce, interval_ms: int) -> None:
        service = Service(name, run_once, interval_ms, self._clock, self._events)
        service.start()
        self._services.append(service)

    async def _write_health(self, now_ms: int) -> bool:
        self._board.write(self._slot, self._report.state(self._services))
        return False
