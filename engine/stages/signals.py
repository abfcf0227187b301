"""Signals: what changes under runs that this worker holds, read every 250 ms and deleted once obeyed."""

from __future__ import annotations

from engine.model import RunKey, SignalKind
from engine.stages.fire import Fire
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.store.changes import take_back
from engine.store.shard import Shard

SIGNALS_MAX = 5_000


class Signals:
    """The signals for one worker on one shard."""

    def __init__(self, shard: Shard, lease: Lease, held: HeldRuns, fire: Fire) -> None:
        self._shard = shard
        self._lease = lease
        self._held = held
        self._fire = fire
        self._unstarted: list[tuple[RunKey, int]] = []

    async def run_once(self, now_ms: int) -> bool:
        answer = await self._shard.execute(
            "read_signals", {"worker_id": self._lease.worker_id, "rows_max": SIGNALS_MAX}
        )
        if not answer.rows:
            return False
        for _, kind, partition_id, scheduled_at, job_id, attempt in answer.rows:
            key = RunKey(partition_id, scheduled_at, job_id)
            run = self._held.find(key, attempt)
            if run is None:
                self._held.foretell(key, attempt)
            elif self._obey(SignalKind(kind), run):
                self._unstarted.append((key, attempt))
        # Kept until they are back: they are held no longer, so that a second look at the signal finds nobody.
        await take_back(self._shard, self._lease.worker_id, self._unstarted, now_ms)
        self._unstarted = []
        await self._shard.execute(
            "delete_signals", {"worker_id": self._lease.worker_id, "signal_id": answer.rows[-1][0]}
        )
        return len(answer.rows) == SIGNALS_MAX

    def _obey(self, kind: SignalKind, run: HeldRun) -> bool:
        """True for a run that will not be fired, and goes back where it is not yet taken back. One that was called
        stands, also while how it ended is still to be written."""
        if kind == SignalKind.CANCEL:
            self._fire.cancel(run)
            return False
        if run.in_flight or run.decided:
            return False
        self._fire.abandon(run)
        return True
