"""Fleet listeners: a process tells the others where it listens, and teaches its guard where they do.

Whatever signs calls asks here first, so that nothing is called before the guard knows the whole fleet; while the first
shard is away, what was known stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.clock import Clock
from engine.listening import machine_identity, told_to_others
from engine.outbound.target import Guard
from engine.store.listeners import NOTED_MS, live_listeners, note_listeners
from engine.store.shard import Shard


class FleetListeners:
    """``places``: host and port of what this process answers for, with 0.0.0.0 and :: for every address."""

    def __init__(
        self, first: Shard, guard: Guard, clock: Clock, places: Sequence[tuple[str, int]] = (), machine: str = ""
    ) -> None:
        self._first = first
        self._guard = guard
        self._clock = clock
        self._places = places
        self._machine = machine or machine_identity()
        self._note_boot_ms = 0
        self.known = False
        """Whether the guard knows the fleet, as it was at some time."""

    async def reread(self) -> None:
        """One look; StoreUnavailable if the first shard does not answer."""
        if self._places and self._clock.boot_ms() >= self._note_boot_ms:
            mine = await asyncio.to_thread(told_to_others, self._places, self._machine)
            await note_listeners(self._first, mine)
            self._note_boot_ms = self._clock.boot_ms() + NOTED_MS
        self._guard.learn(await live_listeners(self._first, self._machine))
        self.known = True
