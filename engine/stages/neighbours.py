"""Neighbours: the leases of dead workers of this host are released at once instead of running out."""

from __future__ import annotations

from collections.abc import Callable

from engine.events import Events
from engine.store.shard import Shard


class Neighbours:
    """Looks after the workers of one host on one shard.

    ``started`` tells when a pid's process started, or None; ``released`` is called for each lease that was released.
    """

    def __init__(
        self,
        shard: Shard,
        host: str,
        started: Callable[[int], int | None],
        released: Callable[[], None],
        events: Events,
    ) -> None:
        self._shard = shard
        self._host = host
        self._started = started
        self._released = released
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        answer = await self._shard.execute("workers_of_host", {"host": self._host})
        for worker_id, pid, pid_started in answer.rows:
            if self._started(pid) != pid_started:
                await self._shard.execute("release_worker", {"worker_id": worker_id})
                self._released()
                self._events.emit("worker.gone", worker_id=worker_id, pid=pid, shard=self._shard.index)
        return False
