"""Poll: one question a round, whether there is anything to plan, claim or obey; the stages sleep until there is.

A worker at rest costs one round trip per shard and round. The stages that are woken ask for themselves what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import Settings
from engine.rules.peaks import planning_horizon_ms
from engine.stages.claim import LATE_MS
from engine.stages.forecast import Forecast
from engine.stages.held import PREPARE_MS
from engine.stages.lease import Lease
from engine.store.shard import Shard


@dataclass
class Sleepers:
    """What to call when there is something to plan, to claim, or a signal to obey."""

    plan: Callable[[], None]
    claim: Callable[[], None]
    signals: Callable[[], None]


class Poll:
    """Asks for one worker on one shard."""

    def __init__(
        self,
        shard: Shard,
        lease: Lease,
        forecast: Forecast,
        all_partitions: Sequence[int],
        settings: Settings,
        sleepers: Sleepers,
    ) -> None:
        self._shard = shard
        self._lease = lease
        self._forecast = forecast
        self._all_partitions = all_partitions
        self._settings = settings
        self._sleepers = sleepers

    async def run_once(self, now_ms: int) -> bool:
        horizon_at_ms = planning_horizon_ms(self._forecast.large, now_ms, self._settings.horizon_ms)
        mine = self._lease.partitions
        due, ahead, late, signals = await self._shard.ask(
            ("any_due_job", {"partitions": mine, "horizon_at": horizon_at_ms}),
            ("any_due_deferred", {"partitions": mine, "due_at": now_ms + PREPARE_MS}),
            ("any_due_deferred", {"partitions": self._all_partitions, "due_at": now_ms - LATE_MS}),
            ("any_signal", {"worker_id": self._lease.worker_id}),
        )
        if due.rows:
            self._sleepers.plan()
        if ahead.rows or late.rows:
            self._sleepers.claim()
        if signals.rows:
            self._sleepers.signals()
        return False
