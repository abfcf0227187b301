"""The loop around a stage: run_once again and again at its own pace, with its health told from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from engine.clock import Clock
from engine.errors import Conflict, StoreUnavailable
from engine.events import Events

# After a failure a stage waits this long, doubling up to the maximum, so that a broken shard costs little. But never
# longer than its own interval: a heartbeat that came late once must not come so late again that its lease is lost.
FAILURE_PAUSE_MS = 100
FAILURE_PAUSE_MS_MAX = 2_000


RunOnce = Callable[[int], Awaitable[bool]]


class Service:
    """Runs ``run_once(now_ms)``, which returns True when it was full and wants to run again at once.

    A failed round is told as an event and tried again after a pause; nothing but ``stop`` ends the loop.
    """

    def __init__(
        self,
        name: str,
        run_once: RunOnce,
        interval_ms: int,
        clock: Clock,
        events: Events,
    ) -> None:
        self.name = name
        self.last_loop_boot_ms = clock.boot_ms()
        self._run_once = run_once
        self._interval_ms = interval_ms
        self._pause_ms_max = max(FAILURE_PAUSE_MS, min(FAILURE_PAUSE_MS_MAX, interval_ms))
        self._clock = clock
        self._events = events
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop(), name=self.name)

    def wake(self) -> None:
        """Run again now instead of at the end of the interval."""
        self._wake.set()

    async def stop(self) -> None:
        """End after the round in progress."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def abort(self) -> None:
        """End at once, in the middle of a round; its transaction is rolled back."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _loop(self) -> None:
        pause_ms = FAILURE_PAUSE_MS
        while not self._stopping:
            self._wake.clear()
            try:
                again = await self._run_once(self._clock.now_ms())
                self.last_loop_boot_ms = self._clock.boot_ms()
                pause_ms = FAILURE_PAUSE_MS
                await self._rest(0 if again else self._interval_ms)
            except StoreUnavailable as error:
                self._events.emit("stage.unavailable", stage=self.name, error=str(error))
                await self._rest(pause_ms)
                pause_ms = min(2 * pause_ms, self._pause_ms_max)
            except Conflict as error:
                self._events.emit("stage.outrun", stage=self.name, error=str(error))
                await self._rest(pause_ms)
            except Exception as error:
                self._events.emit("stage.failed", stage=self.name, error=error)
                await self._rest(pause_ms)
                pause_ms = min(2 * pause_ms, self._pause_ms_max)

    async def _rest(self, rest_ms: int) -> None:
        if rest_ms == 0:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest_ms / 1000):
                await self._wake.wait()
