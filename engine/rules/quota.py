"""Quotas of starts per second: what a tenant may call critical or high, and what an origin takes.

Fleet-wide limits are shared out: each executor takes its part of the live executors' total, at least 1, so that a limit
smaller than the number of executors is overshot by at most that number.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from engine.model import Priority

# Starts per second and tenant that keep their priority; what exceeds them is fired as normal and recorded demoted.
PRIORITY_STARTS_PER_S: dict[int, int] = {Priority.CRITICAL: 500, Priority.HIGH: 2_000}


# All starts of a tenant in a second, unless its own limit says otherwise.
TENANT_STARTS_PER_S = 50_000
TENANT_STARTS_LIMIT = "starts_per_s"


class OriginLimits(NamedTuple):
    """What one public origin takes of all tenants together, so that this service is nobody's weapon."""

    starts_per_s: int = 1_000
    in_flight: int = 200


ORIGIN_LIMITS = OriginLimits()


class StartQuota:
    """Counts starts by key within each second; only the present second is kept."""

    def __init__(self) -> None:
        self._second = 0
        self._started: dict[Hashable, int] = {}

    def admit(self, key: Hashable, starts_per_s: int, now_ms: int) -> bool:
        """Whether one more start of this key fits into the second; counts it if so."""
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._started.clear()
        started = self._started.get(key, 0)
        if started >= starts_per_s:
            return False
        self._started[key] = started + 1
        return True


def share(limit: int, live_executors: int) -> int:
    """This executor's part of a fleet-wide limit."""
    return max(1, limit // max(1, live_executors))
