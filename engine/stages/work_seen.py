"""Work seen: how many function runs are ready for workers on a shard, and what the doors have done; for the metrics."""

from __future__ import annotations

from engine.clock import Clock
from engine.events import Events
from engine.rules.lanes import WORKERS_LANES_FROM
from engine.stages.lapse import DOOR_GAP_MS
from engine.store.shard import Shard

# More than this are not counted: it is an alarm at a hundredth of that.
READY_MAX = 100_000


class WorkSeen:
    """Looks at one shard."""

    def __init__(self, shard: Shard, clock: Clock, events: Events) -> None:
        self._shard = shard
        self._clock = clock
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        ready, doors = await self._shard.ask(
            ("ready_work", {"lanes_from": WORKERS_LANES_FROM, "now_ms": now_ms, "rows_max": READY_MAX}),
            ("doors_seen", {"seen_from": now_ms - DOOR_GAP_MS}),
        )
        count, oldest_ms = ready.rows[0]
        self._events.emit(
            "work.seen",
            shard=self._shard.index,
            ready=count,
            age_ms=0 if oldest_ms is None else max(0, now_ms - oldest_ms),
            doors={f"{row[0]:016x}": list(row[1:]) for row in doors.rows},
        )
        return False
