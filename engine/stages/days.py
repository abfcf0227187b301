"""Days: the pieces of the tables that are cut by day, made ahead of time. The keeper alone has the right to do so."""

from __future__ import annotations

from datetime import UTC, datetime

from engine.events import Events
from engine.store.shard import Shard
from engine.store.statements import Name

DAY_MS = 86_400_000

# Days made ahead: a keeper that is away for two days holds up nobody.
DAYS_AHEAD = 3

# A new fleet begins with yesterday: a time may be up to five minutes past.
DAYS_BACK = 1

TABLES = ("runs", "attempts", "reports")
ROLLUPS = ("job_hours", "tenant_hours")

# The lowest piece of each table: no day, it is always there.
DAY_START = "day_start"


class Days:
    """Makes the coming days of one shard."""

    def __init__(self, shard: Shard, events: Events) -> None:
        self._shard = shard
        self._events = events
        self._made_until_ms = 0

    async def run_once(self, now_ms: int) -> bool:
        """Make what is missing up to DAYS_AHEAD days from the shard's today; nothing if that is made already."""
        if self._made_until_ms >= _day(now_ms) + (DAYS_AHEAD + 1) * DAY_MS:
            return False
        today_ms = _day(await self._shard.now_ms())
        for table in (*TABLES, *ROLLUPS):
            await self._make(table, today_ms)
        self._made_until_ms = today_ms + (DAYS_AHEAD + 1) * DAY_MS
        return False

    async def _make(self, table: str, today_ms: int) -> None:
        rows = (await self._shard.execute("days_of_table", {"table_name": table})).rows
        made_until_ms = max(int(row[1]) for row in rows)
        first_ms = max(made_until_ms, today_ms - DAYS_BACK * DAY_MS)
        days = range(first_ms, today_ms + (DAYS_AHEAD + 1) * DAY_MS, DAY_MS)
        if made_until_ms <= 0 and days:
            # Below the first day nothing may fall into a piece that grows for ever: it ends where the first day begins.
            await self._shard.execute(f"add_day_to_{table}", {"day": _name(days[0] - DAY_MS), "until_at": days[0]})
        for day_ms in days:
            await self._shard.execute(f"add_day_to_{table}", {"day": _name(day_ms), "until_at": day_ms + DAY_MS})
            self._events.emit("day.made", table=table, day=_name(day_ms), shard=self._shard.index)


def _day(at_ms: int) -> int:
    """Midnight UTC of its day."""
    return at_ms - at_ms % DAY_MS


def _name(day_ms: int) -> Name:
    return Name(datetime.fromtimestamp(day_ms / 1000, UTC).strftime("d%Y%m%d"))
