"""Deadlines without a timer for each request: one entry for each connection, looked at when it may be due.

A connection that serves a thousand requests a second has one entry, not a thousand: when the entry comes up and the
connection's deadline has moved on meanwhile, it is simply entered again. One event loop timer serves them all.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Protocol

from engine.clock import Clock

NEVER_MS = 1 << 62


class Watched(Protocol):
    """Something with a deadline. ``watched_ms`` belongs to Deadlines: when it is looked at next."""

    watched_ms: int

    def look(self, now_ms: int) -> int:
        """Act if the deadline has passed; answers when to look again, NEVER_MS if not at all."""


class Deadlines:
    """A heap of (time, order, watched) and one timer for its top."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[tuple[int, int, Watched]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS

    def watch(self, watched: Watched, at_ms: int) -> None:
        """Look at it at ``at_ms``; call this only when that is before its ``watched_ms``."""
        watched.watched_ms = at_ms
        self._order += 1
        heappush(self._heap, (at_ms, self._order, watched))
        if at_ms < self._timer_ms:
            self._set_timer(at_ms)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int:
        """When something is looked at next, NEVER_MS if nothing is watched."""
        return self._timer_ms

    def close(self) -> None:
        """Look at nothing any more."""
        self._heap.clear()
        if self._timer:
            self._timer.cancel()

    def _set_timer(self, at_ms: int) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(0, at_ms - self._clock.now_ms()) / 1000, self._run)

    def _run(self) -> None:
        self._timer = None
        self._timer_ms = NEVER_MS
        now_ms = self._clock.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, watched = heappop(self._heap)
            if watched.watched_ms == at_ms:  # else a later, earlier-due entry has replaced this one
                self._look(watched, now_ms)
        if self._heap and self._heap[0][0] < self._timer_ms:
            self._set_timer(self._heap[0][0])

    def _look(self, watched: Watched, now_ms: int) -> None:
        watched.watched_ms = NEVER_MS
        again_ms = watched.look(now_ms)
        if again_ms < watched.watched_ms:
            self.watch(watched, again_ms)
