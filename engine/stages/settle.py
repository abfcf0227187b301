"""Settle: outcomes become states in MySQL, in sorted batches, each write fenced by state, worker and attempt.

A late result changes nothing: a run that is no longer ours is left to whoever has it. In the peak second firing comes
first, and outcomes wait a bounded while.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

from engine.clock import Clock
from engine.errors import Conflict, StoreUnavailable
from engine.events import Events
from engine.model import Definition, OutcomeKind, Reason, RunState
from engine.outbound.exchange import Outcome
from engine.rules.retry import Verdict, judge
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.settlements import Settlement, Settlements, no_call
from engine.store.shard import Shard
from engine.store.statements import BATCH_ROWS_MAX

# Outcomes gather for this long: a batch of 1,000 costs half as much a row as one of 30.
GATHER_MS = 60

# While many runs are ready to be fired, each outcome waits this long: MySQL's work would take the core that fires.
# Nothing starts later for it; only the window is wider in which a crash fires a run again. A peak of 200,000 is over by
# then; under a load that does not end, firing makes room for what has waited.
HOLD_BACK_MS = 5_000

# A run that was held up by a limit is claimed again after this.
HELD_PAUSE_MS = 2_000


class Settle:
    """Writes the outcomes of one shard's runs."""

    def __init__(
        self,
        shard: Shard,
        held: HeldRuns,
        clock: Clock,
        events: Events,
        is_told: Callable[[int, Definition], bool],
        is_busy: Callable[[], bool],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._shard = shard
        self._held = held
        self._clock = clock
        self._events = events
        self._settlements = Settlements(shard, events, is_told)
        self._is_busy = is_busy
        self._draw = draw
        self._waiting: deque[Settlement] = deque()
        self._rows_max = BATCH_ROWS_MAX
        self.wake: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """Outcomes not yet written."""
        return len(self._waiting)

    def settled(self, run: HeldRun, outcome: Outcome) -> None:
        """Take an outcome; it is written with the next batch."""
        tries = run.tries + (1 if outcome.kind != OutcomeKind.CANCELLED else 0)
        verdict = judge(
            outcome.kind,
            outcome.status,
            tries,
            run.call.definition.retry,
            scheduled_at_ms=run.key.scheduled_at_ms,
            now_ms=outcome.finished_ms,
            retry_after=outcome.retry_after.decode("latin-1") if outcome.retry_after else None,
            draw=self._draw,
        )
        self._enter(Settlement(run, outcome, verdict, tries))

    def skipped(self, run: HeldRun, reason: Reason) -> None:
        """A claimed run that must not be fired, with the reason on record."""
        now_ms = self._clock.now_ms()
        self._enter(Settlement(run, no_call(now_ms), Verdict(RunState.SKIPPED, reason), run.tries))

    def given_back(self, run: HeldRun) -> None:
        """A claimed run that was not fired: due again at its own moment, and no try is counted."""
        self._return(run, Reason.GIVEN_BACK, 0)

    def held_up(self, run: HeldRun, pause_ms: int = HELD_PAUSE_MS) -> None:
        """A run that waits for a limit of its own: due again a little later, no try is counted, and it is not late."""
        self._return(run, Reason.HELD, pause_ms)

    def _return(self, run: HeldRun, reason: Reason, pause_ms: int) -> None:
        now_ms = self._clock.now_ms()
        verdict = Verdict(RunState.WAITING, reason, max(run.due_ms, now_ms + pause_ms))
        self._enter(Settlement(run, no_call(now_ms), verdict, run.tries))

    def _enter(self, settlement: Settlement) -> None:
        """The first one of a batch wakes the stage once more have gathered. A run is decided once."""
        if settlement.run.decided:
            return
        settlement.run.decided = True
        if not self._waiting:
            self._wake_later()
        self._waiting.append(settlement)

    def _wake_later(self) -> None:
        asyncio.get_running_loop().call_later(GATHER_MS / 1000, self.wake)

    async def run_once(self, now_ms: int) -> bool:
        """Write one batch; True if another full one waits. While much is ready, outcomes wait a bounded while."""
        if not self._waiting:
            return False
        if now_ms - self._waiting[0].outcome.finished_ms < HOLD_BACK_MS and self._is_busy():
            self._wake_later()
            return False
        await self._write_next(now_ms)
        if len(self._waiting) >= BATCH_ROWS_MAX:
            return True
        if self._waiting:
            self._wake_later()
        return False

    async def finish(self) -> None:
        """Write everything that waits, at the end of a drain."""
        while self._waiting:
            await self._write_next(self._clock.now_ms())

    async def _write_next(self, now_ms: int) -> None:
        """One batch. Whatever goes wrong, no outcome is dropped: its run would stay claimed by us and be nobody's.

        Also after an unknown commit: what stands already is no longer running, so writing it again finds nothing.
        """
        batch = [self._waiting.popleft() for _ in range(min(self._rows_max, len(self._waiting)))]
        batch.sort(key=lambda settlement: settlement.run.key)
        try:
            await self._shard.retrying(lambda: self._write(batch, now_ms))
        except (StoreUnavailable, Conflict, asyncio.CancelledError):
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception:
            self._part(batch)
            raise
        self._rows_max = min(2 * self._rows_max, BATCH_ROWS_MAX)
        for settlement in batch:
            self._held.remove(settlement.run)

    def _part(self, batch: Sequence[Settlement]) -> None:
        """One that cannot be written, by a mistake of ours, is parted from the others by halves and goes to the end."""
        self._rows_max = max(1, len(batch) // 2)
        if len(batch) == 1:
            self._waiting.extend(batch)
        else:
            self._waiting.extendleft(reversed(batch))

    async def _write(self, batch: Sequence[Settlement], now_ms: int) -> None:
        for worker_id in sorted({settlement.run.worker_id for settlement in batch}):
            mine = [settlement for settlement in batch if settlement.run.worker_id == worker_id]
            async with self._shard.transaction() as connection:
                settled = await self._settlements.write(connection, mine, worker_id, now_ms)
            self._settlements.tell(settled)

