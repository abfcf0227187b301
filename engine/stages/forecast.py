"""Forecast: the large seconds that are coming to the partitions this worker owns, so that they are planned early."""

from __future__ import annotations

from engine.rules.peaks import FORECAST_MS, LARGE_JOBS
from engine.stages.lease import Lease
from engine.store.shard import Shard


class Forecast:
    """Knows the large seconds of one worker on one shard until they are over."""

    def __init__(self, shard: Shard, lease: Lease) -> None:
        self.large: dict[int, int] = {}
        self._shard = shard
        self._lease = lease

    async def run_once(self, now_ms: int) -> bool:
        """Count again. What has been planned meanwhile is no longer counted, and stays known until its second."""
        known = {second_ms: jobs for second_ms, jobs in self.large.items() if second_ms >= now_ms}
        if self._lease.partitions:
            answer = await self._shard.execute(
                "large_seconds",
                {
                    "partitions": self._lease.partitions,
                    "from_at": now_ms,
                    "to_at": now_ms + FORECAST_MS,
                    "jobs_min": LARGE_JOBS,
                },
            )
            for second_ms, jobs in answer.rows:
                known[second_ms] = max(jobs, known.get(second_ms, 0))
        self.large = known
        return False
