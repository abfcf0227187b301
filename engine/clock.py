"""The only place that asks the machine for the time.

``now_ms`` is wall time built from CLOCK_BOOTTIME plus an anchor, so that a step of the wall clock neither fires a run
early nor fires it twice, and a suspended machine wakes up knowing that time has passed. The anchor moves only in
``follow``, which every heartbeat calls with a shard's time: gently after the wall clock while that agrees with the
shards, and to the shards' time where the host's clock is wrong. One shard whose clock is wrong moves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

# Drift is corrected by at most this in one heartbeat.
SLEW_MS_MAX = 50

# A wall clock further from the shard's than this is wrong; below it the difference may be the way to the shard.
OFFSET_MS_MAX = 2_000

# What a shard's clock said so long ago, or on its way for so long, is not held against ours: a loop that stood still
# while several shards answered would find all of them behind.
SLOW_ANSWER_MS = OFFSET_MS_MAX // 2

_clock_gettime_ns = time.clock_gettime_ns
_BOOTTIME = time.CLOCK_BOOTTIME


class Clock(Protocol):
    """Times are whole milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC; never steps."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, counting suspended time; what a worker judges its own leases by."""

    def follow(self, shard_now_ms: int, shard: int = 0) -> int:
        """Correct this clock by a shard's; returns how far the host's wall clock is behind the shard's."""


class SystemClock:
    """The machine's clocks."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        # In nanoseconds, and the wall clock first: rounding or a pause in between may leave us behind, never ahead.
        self._anchor_ns = wall_ns() - _clock_gettime_ns(_BOOTTIME)
        self._shard_anchors_ns: dict[int, int] = {}

    def now_ms(self) -> int:
        # Asked twice for every call fired: spelled out, it takes two thirds of the time.
        return (self._anchor_ns + _clock_gettime_ns(_BOOTTIME)) // 1_000_000

    def boot_ms(self) -> int:
        return _boot_ms()

    def follow(self, shard_now_ms: int, shard: int = 0) -> int:
        boot_ns, wall_ns = _clock_gettime_ns(_BOOTTIME), self._wall_ns()
        self._shard_anchors_ns[shard] = shard_now_ms * 1_000_000 - boot_ns
        agreed_ns = _agreed(list(self._shard_anchors_ns.values()), wall_ns - boot_ns)
        error_ns = agreed_ns - self._anchor_ns
        if abs(error_ns) > OFFSET_MS_MAX * 1_000_000:
            self._anchor_ns = agreed_ns
        elif agreed_ns == wall_ns - boot_ns:
            self._anchor_ns += max(-SLEW_MS_MAX * 1_000_000, min(SLEW_MS_MAX * 1_000_000, error_ns))
        return shard_now_ms - wall_ns // 1_000_000


def _agreed(shards_ns: Sequence[int], wall_ns: int) -> int:
    """Of the clocks of the shards and the host's own, what most agree on: one of many that is wrong moves nobody. The
    host's own, which is the finer one, where it is among those; a single shard's where the host stands against it.

    Clocks are given as their time minus that since boot, so that what was read at other moments can be compared.
    """
    clocks = [wall_ns, *shards_ns] if len(shards_ns) > 1 else [*shards_ns, wall_ns]
    best = max(clocks, key=lambda clock: sum(_agree(clock, other) for other in clocks))
    return wall_ns if _agree(best, wall_ns) else best


def _agree(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) <= OFFSET_MS_MAX * 1_000_000


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
