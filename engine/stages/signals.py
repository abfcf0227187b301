"""Signals: what changes under runs that this worker holds, read every 250 ms and deleted once obeyed."""

from __future__ import annotations

from engine.model import RunKey, SignalKind
from engine.stages.fire import Fire
from engine.stages.held import HeldRuns
from engine.stages.lease import Lease
from engine.store.shard import Shard

SIGNALS_MAX = 5_000


class Signals:
    """The signals for one worker on one shard."""

    def __init__(self, shard: Shard, lease: Lease, held: HeldRuns, fire: Fire) -> None:
        self._shard = shard
        self._lease = lease
        self._held = held
        self._fire = fire

    async def run_once(self, now_ms: int) -> bool:
        answer = await self._shard.execute(
            "read_signals", {"worker_id": self._lease.worker_id, "rows_max": SIGNALS_MAX}
        )
        if not answer.rows:
            return False
        for _, kind, partition_id, scheduled_at, job_id, attempt in answer.rows:
            self._obey(SignalKind(kind), RunKey(partition_id, scheduled_at, job_id), attempt)
        await self._shard.execute(
            "delete_signals", {"worker_id": self._lease.worker_id, "signal_id": answer.rows[-1][0]}
        )
        return len(answer.rows) == SIGNALS_MAX

    def _obey(self, kind: SignalKind, key: RunKey, attempt: int) -> None:
        """A run that is not held under this attempt has ended or moved on: nothing to do."""
        run = self._held.find(key, attempt)
        if run is None:
            return
        if kind == SignalKind.CANCEL:
            self._fire.cancel(run)
        elif not run.in_flight:
            self._fire.abandon(run)
