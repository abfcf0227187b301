"""Door: a process of the API shows itself on a shard, and writes down which functions are asked for.

That it is there is what the silence of workers is judged by (engine/stages/lapse.py); when a function was last asked
for is what a run that waits in vain is shown with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from engine.clock import Clock
from engine.stages.lapse import DOOR_GAP_MS
from engine.stages.work import Work
from engine.store.shard import Shard

SHOW_MS = 2_000

# A function that is asked for all the time is written down this often.
NOTE_ASKED_MS = 20_000

# What a door or a function leaves behind goes after this.
FORGET_DOORS_MS = 3_600_000
FORGET_FUNCTIONS_MS = 30 * 86_400_000
TIDY_MS = 60_000
TIDY_ROWS_MAX = 1_000

# Functions remembered by one process: the newest, for an hour after they were last asked for. No tenant has more than
# its share of them, so that names which nobody ever wanted fill neither the memory nor the table.
FUNCTIONS_MAX = 20_000
FUNCTIONS_PER_TENANT_MAX = 1_000
REMEMBERED_MS = 3_600_000

FunctionKey = tuple[int, str]


class Asked:
    """When each function was last asked for in this process."""

    def __init__(self) -> None:
        self.at_ms: dict[FunctionKey, int] = {}
        self._of_tenant: Counter[int] = Counter()

    def note(self, functions: Iterable[FunctionKey], now_ms: int) -> None:
        self._forget(now_ms - REMEMBERED_MS)
        for function in functions:
            if self.at_ms.pop(function, None) is None:
                if self._of_tenant[function[0]] >= FUNCTIONS_PER_TENANT_MAX:
                    continue
                self._of_tenant[function[0]] += 1
            self.at_ms[function] = now_ms
        self._forget(now_ms - REMEMBERED_MS)

    def _forget(self, before_ms: int) -> None:
        """In the order in which they were last asked for."""
        while self.at_ms:
            oldest = next(iter(self.at_ms))
            if self.at_ms[oldest] >= before_ms and len(self.at_ms) <= FUNCTIONS_MAX:
                return
            del self.at_ms[oldest]
            self._of_tenant[oldest[0]] -= 1
            if not self._of_tenant[oldest[0]]:
                del self._of_tenant[oldest[0]]


class Door:
    """One process's door on one shard. ``waiting``: how many workers wait here, and for what."""

    def __init__(
        self,
        work: Work,
        asked: Asked,
        waiting: Callable[[], tuple[int, Iterable[FunctionKey]]],
        clock: Clock,
    ) -> None:
        self._shard: Shard = work.shard
        self._work = work
        self._asked = asked
        self._waiting = waiting
        self._clock = clock
        self._noted: dict[FunctionKey, int] = {}
        self._tidied_ms = 0

    async def run_once(self, now_ms: int) -> bool:
        """Show itself, once every SHOW_MS."""
        self._clock.follow(await self._shard.now_ms(), self._shard.index)
        now_ms = self._clock.now_ms()
        waiting, functions = self._waiting()
        self._asked.note(functions, now_ms)
        counts = self._work.counts
        await self._shard.execute(
            "stand_at_door",
            {
                "door_id": self._work.door_id,
                "now_ms": now_ms,
                "gap_ms": DOOR_GAP_MS,
                "claimed": counts["claimed"],
                "ended": counts["ended"],
                "stale": counts["stale"],
                "waiting": waiting,
            },
        )
        await self._note_asked()
        await self._tidy(now_ms)
        return False

    async def leave(self) -> None:
        """This process ends."""
        await self._shard.execute("leave_door", {"door_id": self._work.door_id})

    async def _note_asked(self) -> None:
        new = {
            function: at_ms
            for function, at_ms in self._asked.at_ms.items()
            if at_ms >= self._noted.get(function, 0) + NOTE_ASKED_MS
        }
        if new:
            rows = sorted((*function, at_ms) for function, at_ms in new.items())
            async with self._shard.connection() as connection:
                await connection.execute_rows("note_asked", rows, bytes_max=self._shard.packet_bytes_max)
            self._noted = {key: at_ms for key, at_ms in (self._noted | new).items() if key in self._asked.at_ms}

    async def _tidy(self, now_ms: int) -> None:
        if now_ms < self._tidied_ms + TIDY_MS:
            return
        self._tidied_ms = now_ms
        await self._shard.execute("forget_doors", {"before_at": now_ms - FORGET_DOORS_MS})
        values = {"before_at": now_ms - FORGET_FUNCTIONS_MS, "rows_max": TIDY_ROWS_MAX}
        await self._shard.execute("forget_functions", values)


async def last_asked(shard: Shard, tenant_id: int, function: str) -> int | None:
    """When a worker last asked for this function, some seconds late; None if none has for a month."""
    rows = (await shard.execute("function_asked", {"tenant_id": tenant_id, "name": function})).rows
    return int(rows[0][0]) if rows else None
