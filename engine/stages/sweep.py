"""Sweep: the mark of a partition moves up behind the present, so that nobody scans past finished rows.

Every open run that the mark passes gets a row in ``deferred``, under the lock held on it, in the same transaction. A
planner holds the mark FOR SHARE while it inserts, so a late commit is never left below an unswept mark.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import Conflict
from engine.events import Events
from engine.model import Reason, RunKey, RunState
from engine.rules.lanes import taken_lane
from engine.store.connection import Connection
from engine.store.shard import Shard

# The mark stays this far behind the present: by then nearly every run of a second has ended.
BEHIND_MS = 60_000

# A partition's mark moves in steps of at least this, so that an idle fleet writes little.
STEP_MS = 30_000


class Sweep:
    """Moves the marks of one shard."""

    def __init__(self, shard: Shard, all_partitions: Sequence[int], events: Events) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        """Move every mark that is a step behind; a partition whose mark is held by a planner has its turn later."""
        mark_at_ms = await self._shard.now_ms() - BEHIND_MS
        behind = await self._shard.execute(
            "marks_behind", {"partitions": self._all_partitions, "mark_at": mark_at_ms - STEP_MS}
        )
        for (partition_id,) in behind.rows:
            try:
                await self._sweep(partition_id, mark_at_ms)
            except Conflict:
                self._events.emit("mark.busy", partition_id=partition_id, shard=self._shard.index)
        return False

    async def _sweep(self, partition_id: int, mark_at_ms: int) -> None:
        async with self._shard.transaction() as connection:
            locked = await connection.execute("lock_mark", {"partition_id": partition_id})
            from_ms = locked.rows[0][0]
            if from_ms < mark_at_ms:
                await self._defer_open(connection, partition_id, from_ms, mark_at_ms)
                await connection.execute("move_mark", {"partition_id": partition_id, "mark_at": mark_at_ms})

    async def _defer_open(self, connection: Connection, partition_id: int, from_ms: int, to_ms: int) -> None:
        answer = await connection.execute(
            "lock_open_runs", {"partition_id": partition_id, "from_at": from_ms, "to_at": to_ms}
        )
        rows = [_swept_row(RunKey(*row[:3]), *row[3:]) for row in answer.rows]
        if rows:
            await connection.execute_rows("defer_swept", rows, bytes_max=self._shard.packet_bytes_max)
            self._events.emit("run.swept", runs=len(rows), shard=self._shard.index)


def _swept_row(
    key: RunKey, state: int, lease_until_ms: int, priority: int, tenant_id: int
) -> tuple[object, ...]:
    """A row of ``defer_swept``: what somebody has is due when its lease ends."""
    if state == RunState.RUNNING:
        return (*key, lease_until_ms, Reason.SWEPT, priority, tenant_id, taken_lane(key.partition_id))
    return (*key, key.scheduled_at_ms, Reason.SWEPT, priority, tenant_id, key.partition_id)
