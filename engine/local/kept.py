"""A process that is kept running: started again when it ends, with a pause that grows while it keeps failing."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import OperatorError
from engine.local.apt import Say

# The first restart comes at once to the eye; one that keeps failing does not fill the log.
PAUSE_MS = 100
PAUSE_MS_MAX = 10_000
LIVED_WELL_MS = 30_000


class Kept:
    """``start`` may raise OperatorError; ``exit_status`` is None while it runs. ``look`` does the keeping."""

    def __init__(self, name: str, start: Callable[[], None], exit_status: Callable[[], int | None], say: Say) -> None:
        self.name = name
        self._start = start
        self._exit_status = exit_status
        self._say = say
        self._running = True
        self._started_ms = 0
        self._start_at_ms = 0
        self._pause_ms = PAUSE_MS

    def look(self, now_ms: int) -> None:
        """Take note of an end, and start what is due (boot time)."""
        status = self._exit_status() if self._running else None
        if status is not None:
            self._ended(f"ended with status {status}", now_ms)
        if not self._running and now_ms >= self._start_at_ms:
            self._start_again(now_ms)

    def _ended(self, how: str, now_ms: int) -> None:
        lived_well = now_ms - self._started_ms >= LIVED_WELL_MS
        self._pause_ms = PAUSE_MS if lived_well else min(2 * self._pause_ms, PAUSE_MS_MAX)
        self._start_at_ms = now_ms + self._pause_ms
        self._running = False
        self._say(f"{self.name} {how}; starting it again in {self._pause_ms / 1000:g} s")

    def _start_again(self, now_ms: int) -> None:
        self._started_ms = now_ms
        try:
            self._start()
            self._running = True
        except OperatorError as error:
            self._ended(f"did not start: {error}", now_ms)
