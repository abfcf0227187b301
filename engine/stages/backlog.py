"""Backlog: how far planning has come on a shard, and how long the oldest due run has waited; for the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.events import Events
from engine.store.connection import Row
from engine.store.shard import Shard


class Backlog:
    """Looks at one shard, at the first entry of an index for each partition."""

    def __init__(self, shard: Shard, all_partitions: Sequence[int], events: Events) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        values = {"partitions": self._all_partitions}
        now, planned, deferred = await self._shard.ask(
            ("shard_now", {}), ("first_unplanned", values), ("first_deferred", values)
        )
        shard_now_ms, unplanned_ms = int(now.rows[0][0]), _first(planned.rows)
        waiting = [at_ms for at_ms in (unplanned_ms, _first(deferred.rows)) if at_ms is not None]
        self._events.emit(
            "backlog.seen",
            shard=self._shard.index,
            age_ms=max(0, shard_now_ms - min(waiting, default=shard_now_ms)),
            ahead_ms=None if unplanned_ms is None else max(0, unplanned_ms - shard_now_ms),
        )
        return False


def _first(rows: Iterable[Row]) -> int | None:
    return min((int(row[1]) for row in rows), default=None)
