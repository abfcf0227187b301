"""Large seconds: planned early and at a bounded rate, to be ready before they come, and left alone just before."""

from __future__ import annotations

from collections.abc import Mapping

# A second with at least this many jobs on one worker's partitions of a shard is large.
LARGE_JOBS = 2_000

# A large second is planned at this rate, beside everything else that goes on, and is ready this long before.
JOBS_PER_S = 5_000
READY_BEFORE_MS = 5_000

# Just before a large second nothing but what is urgent is planned: the core belongs to firing.
QUIET_MS = 2_000

# Forecasts reach this far; a second so large that it needs more is planned as far as there is time.
FORECAST_MS = 600_000


def planning_horizon_ms(large: Mapping[int, int], now_ms: int, horizon_ms: int) -> int:
    """Up to which time is planned now: the usual horizon, or the furthest large second whose planning must begin.

    ``large`` maps seconds (milliseconds since the epoch) to their numbers of jobs.
    """
    horizon_at_ms = now_ms + horizon_ms
    for second_ms, jobs in large.items():
        begins_ms = second_ms - READY_BEFORE_MS - jobs * 1000 // JOBS_PER_S
        if begins_ms <= now_ms:
            horizon_at_ms = max(horizon_at_ms, second_ms)
    return horizon_at_ms


def is_quiet(large: Mapping[int, int], now_ms: int) -> bool:
    """Whether a large second is about to come."""
    return any(0 <= second_ms - now_ms <= QUIET_MS for second_ms in large)
