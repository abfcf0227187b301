"""Rollup: the ended runs of each hour are counted, by tenant and by busy job, behind the mark.

The unit is one hour of one partition, read in one range and written over what was counted of it before: counting twice
changes nothing, and every mistake in what was counted heals with the next count. An hour is counted once the mark has
passed it. What is open then stands in ``deferred``, and the hour in ``recounts``: it is counted anew until nothing is
open of it. So is an hour in which something is put later (a caught-up time, a dead letter that is tried again): who
does so notes it in the same transaction. Of the hour that is not over, what is there is counted now and then.

Why not in the transaction that settles: hardly two runs of a batch are of one job, so it would write a row of
``job_hours`` for each run, 9 µs of mysqld where that is new and 16 where it is there, beside the 20 of settling. Read
back by hour it is 5: 2 for jobs, 3 for a thousand tenants; and not in the second that counts. A job with fewer runs an
hour than RUNS_MIN gets no row at all: in 30 days it has so few that they are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.clock import Clock
from engine.errors import Conflict
from engine.events import Events
from engine.model import HOUR_MS
from engine.store.connection import Connection
from engine.store.rollups import RECOUNT_MS, RUNS_MIN
from engine.store.shard import Shard
from engine.store.statements import Value

# A whole hour of one partition at 5,000 runs a second is some 300,000 rows, 1.5 s; a turn of a stage is to end in 30.
COUNT_MS_MAX = 60_000
HOURS_PER_TURN = 4
LOOKS_PER_TURN = 16

# Retries may keep an hour open for a day, and a held run for longer: it is counted anew when it is a quarter older.
RECOUNT_AGE_PARTS = 4

# The hour that is not over: how far behind the mark what is counted of it may be, and the pause after looking, in
# multiples of what it took: reading the hour from its beginning again and again must not cost more than a fiftieth.
SEEN_STEP_MS = 60_000
PAUSE_TIMES = 50


class Rollup:
    """Counts the runs of one shard. Several at once are harmless: each holds the row of the partition it counts."""

    def __init__(self, shard: Shard, all_partitions: Sequence[int], clock: Clock, events: Events) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._clock = clock
        self._events = events
        self._begun = False
        self._look_boot_ms = 0

    async def run_once(self, now_ms: int) -> bool:
        """Count some hours that are over, some anew, or else of those that are not over; True if there may be more."""
        partitions: dict[str, Value] = {"partitions": self._all_partitions}
        if not self._begun:
            await self._shard.execute("begin_counting", partitions)
            self._begun = True
        some = {**partitions, "rows_max": HOURS_PER_TURN}
        over = (await self._shard.execute("hours_to_count", some)).rows
        due = {**some, "now_ms": await self._shard.now_ms()}
        again = (await self._shard.execute("hours_to_recount", due)).rows
        counted = [await self._hold(number, hour_ms, hour_ms + HOUR_MS) for number, hour_ms in (*over, *again)]
        if not counted:
            await self._look(partitions)
        return any(counted)

    async def _look(self, partitions: Mapping[str, Value]) -> None:
        begun_boot_ms = self._clock.boot_ms()
        if begun_boot_ms < self._look_boot_ms:
            return
        seen = {**partitions, "step_ms": SEEN_STEP_MS, "rows_max": LOOKS_PER_TURN}
        rows = (await self._shard.execute("hours_to_see", seen)).rows
        for partition_id, hour_ms, mark_at_ms in rows:
            await self._hold(partition_id, hour_ms, mark_at_ms)
        took_ms = self._clock.boot_ms() - begun_boot_ms
        self._look_boot_ms = begun_boot_ms + PAUSE_TIMES * took_ms

    async def _hold(self, partition_id: int, hour_ms: int, to_ms: int) -> bool:
        """False where another keeper is at it."""
        try:
            async with self._shard.transaction() as connection:
                (locked,) = (await connection.execute("lock_counted", {"partition_id": partition_id})).rows
                await self._count(connection, partition_id, hour_ms, to_ms, locked[0])
        except Conflict:
            self._events.emit("count.busy", partition_id=partition_id, shard=self._shard.index)
            return False
        return True

    async def _count(
        self, connection: Connection, partition_id: int, hour_ms: int, to_ms: int, counted_to_ms: int
    ) -> None:
        """Count an hour, as far as it is over; ``counted_to_ms`` is what another keeper may have moved meanwhile."""
        values = {"partition_id": partition_id, "hour_at": hour_ms, "from_at": hour_ms, "to_at": to_ms}
        is_over = to_ms == hour_ms + HOUR_MS
        if not is_over and counted_to_ms > hour_ms:
            return
        marks = (await connection.execute("marks_of_recount", values)).rows
        if hour_ms < (await connection.execute("gone_days")).rows[0][0]:
            # What was counted of it stands; a run that is retried from there stands in its hour alone.
            await connection.execute("delete_recount", {**values, "marks": marks[0][0] if marks else 0})
            return
        is_open = (await connection.execute("open_below", values)).rows
        await connection.execute("count_tenants", values, COUNT_MS_MAX)
        if is_over:
            await connection.execute("count_busy_jobs", {**values, "runs_min": RUNS_MIN}, COUNT_MS_MAX)
        if is_over and is_open:
            now_ms = int((await connection.execute("shard_now")).rows[0][0])
            pause_ms = max(RECOUNT_MS, (now_ms - to_ms) // RECOUNT_AGE_PARTS)
            noted = [(partition_id, hour_ms, now_ms + pause_ms, 1)]
            await connection.execute_rows("note_recounts", noted, bytes_max=self._shard.packet_bytes_max)
        elif is_over and marks:
            await connection.execute("delete_recount", {**values, "marks": marks[0][0]})
        if hour_ms == counted_to_ms:
            moved = {"partition_id": partition_id, "counted_to": to_ms if is_over else hour_ms, "seen_to": to_ms}
            await connection.execute("move_counted", moved)
        self._events.emit("hour.counted", hour_at=hour_ms, over=is_over, shard=self._shard.index)
