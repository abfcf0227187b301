"""Deadlines without a timer for each request: one entry for each connection, looked at when it may be due.

A connection that serves a thousand requests a second has one entry, not a thousand: when the entry comes up and the
connection's deadline has moved on meanwhile, it is simply entered again. One event loop timer serves them all.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine._native.wheel import Wheel
from engine.clock import Clock

NEVER_MS = 1 << 62


class Watched(Protocol):
    """Something with a deadline. The two attributes belong to Deadlines: its entry, and when it comes up."""

    watch: int
    watched_ms: int

    def look(self, now_ms: int) -> int:
        """Act if the deadline has passed; answers when to look again, NEVER_MS if not at all."""


class Deadlines:
    """A timing wheel, and one timer for what comes up next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._wheel: Wheel[Watched] = Wheel(clock.now_ms())
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self.late_ms = 0  # by how much the last timer came late: how far the event loop is behind

    def __len__(self) -> int:
        return len(self._wheel)

    @property
    def next_ms(self) -> int:
        """When the timer runs next, NEVER_MS if nothing is watched."""
        return self._timer_ms

    def watch(self, watched: Watched, at_ms: int) -> None:
        """Look at it at ``at_ms``, and not when it would have been looked at before."""
        self._wheel.cancel(watched.watch)
        watched.watch = self._wheel.add(at_ms, watched)
        watched.watched_ms = at_ms
        if at_ms < self._timer_ms:
            self._set_timer(at_ms)

    def forget(self, watched: Watched) -> None:
        """Do not look at it any more."""
        self._wheel.cancel(watched.watch)
        watched.watch, watched.watched_ms = 0, NEVER_MS

    def close(self) -> None:
        """Look at nothing any more."""
        self._wheel.clear()
        if self._timer:
            self._timer.cancel()

    def _set_timer(self, at_ms: int) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(0, at_ms - self._clock.now_ms()) / 1000, self._run)

    def _run(self) -> None:
        now_ms = self._clock.now_ms()
        self.late_ms = now_ms - self._timer_ms
        self._timer, self._timer_ms = None, NEVER_MS
        due = self._wheel.advance(now_ms)
        for watched in due:
            watched.watch, watched.watched_ms = 0, NEVER_MS
        for watched in due:
            again_ms = watched.look(now_ms)
            if again_ms < watched.watched_ms:
                self.watch(watched, again_ms)
        next_ms = self._wheel.next_due_ms()
        if 0 <= next_ms < self._timer_ms:
            self._set_timer(next_ms)
