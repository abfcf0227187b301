"""Timekeep: the keeper's clock follows the shards', as an executor's does with each heartbeat.

What the keeper reaps is judged by whether it was due: by a clock that is off, a run that never was would cost a try.
"""

from __future__ import annotations

import asyncio

from engine.clock import OFFSET_MS_MAX, SLOW_ANSWER_MS, Clock
from engine.events import Events
from engine.store.shard import Shard


class Timekeep:
    """Follows one shard. ``followed`` is set once it has; before that the keeper does nothing there."""

    def __init__(self, shard: Shard, clock: Clock, events: Events) -> None:
        self.followed = asyncio.Event()
        self._shard = shard
        self._clock = clock
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        asked_boot_ms = self._clock.boot_ms()
        shard_now_ms = await self._shard.now_ms()
        if self.followed.is_set() and self._clock.boot_ms() - asked_boot_ms > SLOW_ANSWER_MS:
            return False
        offset_ms = self._clock.follow(shard_now_ms, self._shard.index)
        if abs(offset_ms) > OFFSET_MS_MAX:
            self._events.emit("clock.off", shard=self._shard.index, offset_ms=offset_ms)
        self.followed.set()
        return False
