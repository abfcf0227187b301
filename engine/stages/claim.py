"""Claim: waiting runs that are due (or nearly) are taken through their row in ``deferred``.

The owner of a partition claims a little ahead; anyone may claim what is late, so that a dead owner delays its runs by
a moment and not by a lease. Runs that must not overlap are claimed under their job's row lock, never ahead. Those whose
secrets are sealed with a key that their owner lacks stand aside; every worker looks there now and then, whether it has
the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.clock import Clock
from engine.errors import CommitUnknown
from engine.events import Events
from engine.model import Definition, RunKey
from engine.rules.lanes import sealed_lane
from engine.stages.candidates import Candidates
from engine.stages.held import PREPARE_MS, HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.take import Take, Taking
from engine.stages.versions import Versions
from engine.store.connection import Row
from engine.store.shard import Shard
from engine.store.statements import time_bounds

CANDIDATES_MAX = 1_000

# What its owner has not claimed this long after it was due is anybody's: it claims ahead, so it is gone or behind. The
# sum of this, a look at dead processes, a reap and a poll (250 ms each) is what a dead owner delays its runs by.
LATE_MS = 500

# So often a worker looks whether it can open what others could not.
SEALED_INTERVAL_MS = 5_000


class Claim:
    """Claims on one shard for one worker."""

    def __init__(
        self,
        shard: Shard,
        lease: Lease,
        all_partitions: Sequence[int],
        held: HeldRuns,
        hold: Callable[[Sequence[HeldRun]], None],
        versions: Versions,
        clock: Clock,
        events: Events,
        is_told: Callable[[int, Definition], bool],
    ) -> None:
        self._shard = shard
        self._lease = lease
        self._all_partitions = all_partitions
        self._held = held
        self._hold_runs = hold
        self._clock = clock
        self._events = events
        self._taking = Taking(shard, versions, events, is_told)
        self._unknown: list[HeldRun] = []
        self._candidates = Candidates(shard, clock)
        self._sealed_candidates = Candidates(shard, clock)
        self._sealed_lanes = [sealed_lane(partition_id) for partition_id in all_partitions]
        self._sealed_at_ms = 0

    async def run_once(self, now_ms: int) -> bool:
        """One batch of what is due on my partitions, else of what is late on any; True if there may be more."""
        await self._resolve_unknown()
        room = min(CANDIDATES_MAX, self._held.room())
        if room == 0 or not self._lease.trusted():
            return False
        await self._claim_sealed(now_ms, room)
        ahead_ms = PREPARE_MS if self._lease.may_claim_ahead() else 0
        mine, anybodys = (self._lease.partitions, now_ms + ahead_ms), (self._all_partitions, now_ms - LATE_MS)
        for partitions, due_at_ms in (mine, anybodys):
            candidates = await self._candidates.first(partitions, now_ms, due_at_ms, room)
            if candidates and await self._claim(candidates, now_ms, due_at_ms):
                return len(candidates) == room
        return False

    async def _claim_sealed(self, now_ms: int, room: int) -> None:
        """One batch of what could not be opened; what still cannot goes to the end of its lane."""
        if now_ms < self._sealed_at_ms:
            return
        self._sealed_at_ms = now_ms + SEALED_INTERVAL_MS
        candidates = await self._sealed_candidates.first(self._sealed_lanes, now_ms, now_ms, room)
        if candidates:
            await self._claim(candidates, now_ms, now_ms)

    async def _claim(self, candidates: Sequence[RunKey], now_ms: int, due_at_ms: int) -> int:
        """Returns how many runs were claimed or otherwise dealt with."""
        take = Take()

        async def transaction() -> None:
            nonlocal take
            async with self._shard.transaction() as connection:
                take = await self._taking.take(connection, candidates, self._lease.worker_id, now_ms, due_at_ms)

        try:
            await self._shard.retrying(transaction)
        except CommitUnknown:
            self._unknown = take.claimed
            raise
        self._hold(take.claimed)
        return take.dealt_with

    def _hold(self, runs: Sequence[HeldRun]) -> None:
        if runs:
            self._hold_runs(runs)
            self._events.emit("run.claimed", runs=len(runs), shard=self._shard.index)

    async def _resolve_unknown(self) -> None:
        """After a lost COMMIT: hold those runs that stand under our name, before anything else is claimed here."""
        if not self._unknown:
            return
        rows: list[Row] = [(*run.key, run.attempt) for run in self._unknown]
        values = {**time_bounds(rows), "worker_id": self._unknown[0].worker_id}
        async with self._shard.connection() as connection:
            found = await connection.fetch_rows(
                "my_planned_runs", rows, values, bytes_max=self._shard.packet_bytes_max
            )
        mine = {(RunKey(*row[:3]), row[3]) for row in found}
        unknown, self._unknown = self._unknown, []
        self._hold([run for run in unknown if run.identity in mine])
        self._events.emit("commit.resolved", step="claim", stood=len(mine), asked=len(unknown))
