"""The only place that asks the machine for the time.

``now_ms`` is wall time built from CLOCK_BOOTTIME plus an anchor, so that a step of the wall clock neither fires a run
early nor fires it twice, and a suspended machine wakes up knowing that time has passed. The anchor moves only in
``follow``, which every heartbeat calls with the shard's time: gently after the wall clock while that agrees with the
shard, and to the shard's time where the host's clock is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

# Drift is corrected by at most this in one heartbeat.
SLEW_MS_MAX = 50

# A wall clock further from the shard's than this is wrong; below it the difference may be the way to the shard.
OFFSET_MS_MAX = 2_000

_clock_gettime_ns = time.clock_gettime_ns
_BOOTTIME = time.CLOCK_BOOTTIME


class Clock(Protocol):
    """Times are whole milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC; never steps."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, counting suspended time; what a worker judges its own leases by."""

    def follow(self, shard_now_ms: int) -> int:
        """Correct this clock by a shard's; returns how far the host's wall clock is behind the shard's."""


class SystemClock:
    """The machine's clocks."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        # In nanoseconds, and the wall clock first: rounding or a pause in between may leave us behind, never ahead.
        self._anchor_ns = wall_ns() - _clock_gettime_ns(_BOOTTIME)

    def now_ms(self) -> int:
        # Asked twice for every call fired: spelled out, it takes two thirds of the time.
        return (self._anchor_ns + _clock_gettime_ns(_BOOTTIME)) // 1_000_000

    def boot_ms(self) -> int:
        return _boot_ms()

    def follow(self, shard_now_ms: int) -> int:
        wall_offset_ms = shard_now_ms - self._wall_ns() // 1_000_000
        if abs(wall_offset_ms) <= OFFSET_MS_MAX:
            error_ns = self._wall_ns() - _clock_gettime_ns(_BOOTTIME) - self._anchor_ns
            self._anchor_ns += max(-SLEW_MS_MAX * 1_000_000, min(SLEW_MS_MAX * 1_000_000, error_ns))
        elif abs(shard_now_ms - self.now_ms()) > OFFSET_MS_MAX:
            self._anchor_ns += (shard_now_ms - self.now_ms()) * 1_000_000
        return wall_offset_ms


def wall_ms() -> int:
    """The machine's wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def cpu_ns() -> int:
    """CPU time of this process, nanoseconds."""
    return time.process_time_ns()


def perf_ns() -> int:
    """A monotonic nanosecond counter for measuring spans."""
    return time.perf_counter_ns()


def _boot_ms() -> int:
    return _clock_gettime_ns(_BOOTTIME) // 1_000_000
