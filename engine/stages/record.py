"""Record: finished runs are the history, and after the retention a whole day of them is dropped, never row by row.

A day goes in four steps. The shard's floor is raised to its end: planners read the floor FOR SHARE, so nothing is put
below it from then on. Then we wait until nothing open is left there: an open run below the mark stands in ``deferred``,
so no day is ever scanned for it. Then it is closed, for good: no dead letter of it is retried until it has gone, so
that nothing can become open there behind whoever has looked. Then what it holds is dropped, at a quiet moment and only
while no transaction holds the table for long, because DDL that waits stalls every statement behind it. It has been
counted before: the rollups have days of their own, and keep them longer than the API asks for. With history in
Cassandra, it has also been recorded there.

A dead letter outlives its run's day, and may be retried then. RANGE has no lower bound: put back, its row would stand
in the oldest day that is left, and go with that. So a day that has been emptied becomes a part of the piece
``day_start``, which never goes: there such a run lives, and every statement, fence and stage treats it as any other.
Its rows in ``deferred`` hold up no day. The name is the fence of the DDL: a keeper that slept meanwhile finds no piece
of that name any more, so what stands in ``day_start`` is dropped by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Settings
from engine.errors import Conflict
from engine.events import Events
from engine.stages.days import DAY_MS, DAY_START, ROLLUPS, TABLES
from engine.store.shard import Shard
from engine.store.statements import Name, Value

# Peaks lie on second :00; a day is dropped in the middle of a minute.
QUIET_FROM_S, QUIET_TO_S = 15, 45

# Holding the table for longer than this, a transaction would let a DROP stall those behind it.
HOLDER_AGE_S = 0.2

# Its file may be many gigabytes large.
DROP_MS_MAX = 60_000

# Numbers are told over 30 days.
ROLLUP_DAYS = 31


class Record:
    """Drops the days of one shard that are older than the retention."""

    def __init__(self, shard: Shard, all_partitions: Sequence[int], settings: Settings, events: Events) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._settings = settings
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        """Drop at most one day; True if another one may follow at once."""
        now_ms = await self._shard.now_ms()
        if not QUIET_FROM_S <= now_ms // 1000 % 60 < QUIET_TO_S:
            return False
        await self._drop_rollups(now_ms)
        await self._note_gone()
        day = await self._oldest_day()
        if day is None or day[1] > now_ms - self._settings.mysql_days * DAY_MS:
            return False
        name, until_ms = day
        gone_ms = await self._raise_floor(until_ms)
        reason = await self._close(gone_ms, until_ms) or await self._needed(until_ms)
        if reason:
            self._events.emit("day.kept", day=name, reason=reason, shard=self._shard.index)
            return False
        return await self._drop(name, TABLES)

    async def _drop_rollups(self, now_ms: int) -> None:
        for table in ROLLUPS:
            days = await self._days(table)
            if len(days) > 1 and days[0][1] <= now_ms - ROLLUP_DAYS * DAY_MS:
                await self._drop(days[0][0], (table,))

    async def _note_gone(self) -> None:
        """Below the end of ``day_start`` there are no days any more; dead letters from there may be retried again."""
        rows = (await self._shard.execute("days_of_table", {"table_name": TABLES[0]})).rows
        ends = [int(row[1]) for row in rows if row[0] == DAY_START]
        if ends and ends[0] > 0:
            await self._shard.execute("note_gone_days", {"until_at": ends[0]})

    async def _oldest_day(self) -> tuple[Name, int] | None:
        days = await self._days(TABLES[0])
        return days[0] if len(days) > 1 else None

    async def _days(self, table: str) -> list[tuple[Name, int]]:
        """The oldest first, each with its end."""
        rows = (await self._shard.execute("days_of_table", {"table_name": table})).rows
        return [(Name(row[0]), int(row[1])) for row in rows if row[0] != DAY_START]

    async def _raise_floor(self, floor_at_ms: int) -> int:
        """Returns below which time the days have gone."""
        async with self._shard.transaction() as connection:
            (row,) = (await connection.execute("lock_floor")).rows
            if row[0] < floor_at_ms:
                await connection.execute("raise_floor", {"floor_at": floor_at_ms})
        return int(row[2])

    async def _close(self, gone_ms: int, until_ms: int) -> str | None:
        """Close the day once nothing is open there; why it cannot be, or what has become open just before."""
        for close in (True, False):
            reason = await self._open(gone_ms, until_ms)
            if reason:
                return reason
            if close:
                # Exclusively, so that whoever retries a dead letter has committed, or finds it closed.
                async with self._shard.transaction() as connection:
                    await connection.execute("lock_floor")
                    await connection.execute("close_days", {"until_at": until_ms})
        return None

    async def _open(self, gone_ms: int, until_ms: int) -> str | None:
        values: dict[str, Value] = {"partitions": self._all_partitions, "gone_to": gone_ms, "until_at": until_ms}
        deferred, unswept = await self._shard.ask(("deferred_below", values), ("marks_below", values))
        return "open runs" if deferred.rows or unswept.rows else None

    async def _needed(self, until_ms: int) -> str | None:
        """Why nothing below this time may be dropped yet."""
        values: dict[str, Value] = {"partitions": self._all_partitions, "until_at": until_ms}
        uncounted = await self._shard.execute("counted_below", values)
        if uncounted.rows:
            return "not counted yet"
        if self._settings.history != "cassandra":
            return None
        unrecorded = await self._shard.execute("unrecorded_below", {"until_at": until_ms})
        return "not recorded in Cassandra yet" if unrecorded.rows else None

    async def _drop(self, day: Name, tables: Sequence[str]) -> bool:
        """False, and later again, where a transaction holds one of the tables."""
        for table in tables:
            holders = await self._shard.execute("long_holders", {"table_name": table, "age_s": HOLDER_AGE_S})
            if holders.rows:
                self._events.emit("day.kept", day=day, reason="a long transaction", shard=self._shard.index)
                return False
        try:
            for table in reversed(tables):
                await self._drop_from(table, day)
        except Conflict:
            self._events.emit("day.kept", day=day, reason="the table is busy", shard=self._shard.index)
            return False
        await self._note_gone()
        self._events.emit("day.dropped", day=day, tables=tables, shard=self._shard.index)
        return True

    async def _drop_from(self, table: str, day: Name) -> None:
        ends = dict(await self._days(table))
        if day not in ends:
            return
        values: dict[str, Value] = {"day": day, "until_at": ends[day]}
        async with self._shard.connection() as connection:
            await connection.execute("wait_briefly")
            try:
                if table in ROLLUPS:
                    await connection.execute(f"drop_day_of_{table}", values, DROP_MS_MAX)
                else:
                    await connection.execute(f"empty_day_of_{table}", values, DROP_MS_MAX)
                    await connection.execute(f"merge_day_of_{table}", values, DROP_MS_MAX)
            finally:
                if connection.usable:
                    await connection.execute("wait_as_usual")
