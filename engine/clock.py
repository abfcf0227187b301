"""The only place that asks the machine for the time.

``now_ms`` is wall time built from CLOCK_BOOTTIME plus an anchor, so that a step of the wall clock neither fires a run
early nor fires it twice, and a suspended machine wakes up knowing that time has passed. The anchor follows the wall
clock only through ``slew``, which the heartbeat calls with what the shards say.
"""

from __future__ import annotations

import time
from typing import Protocol

# A correction larger than this in one heartbeat is a step, not drift; it is applied in slices of this size.
SLEW_MS_MAX = 50

_clock_gettime_ns = time.clock_gettime_ns
_BOOTTIME = time.CLOCK_BOOTTIME


class Clock(Protocol):
    """Times are whole milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC; never steps."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, counting suspended time; what a worker judges its own leases by."""


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        # In nanoseconds, and the wall clock first: rounding or a pause in between may leave us behind, never ahead.
        self._anchor_ns = time.time_ns() - _clock_gettime_ns(_BOOTTIME)

    def now_ms(self) -> int:
        # Asked twice for every call fired: spelled out, it takes two thirds of the time.
        return (self._anchor_ns + _clock_gettime_ns(_BOOTTIME)) // 1_000_000

    def boot_ms(self) -> int:
        return _boot_ms()

    def slew(self, offset_ms: int) -> None:
        """Move towards a measured offset (true minus ours), by at most SLEW_MS_MAX."""
        self._anchor_ns += max(-SLEW_MS_MAX, min(SLEW_MS_MAX, offset_ms)) * 1_000_000


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
