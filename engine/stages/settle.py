"""Settle: outcomes become states in MySQL, in sorted batches, each write fenced by state, worker and attempt.

A late result changes nothing: a run that is no longer ours is left to whoever has it. In the peak second firing comes
first, and outcomes wait a bounded while.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.errors import Conflict, StoreUnavailable
from engine.events import Events
from engine.model import Definition, NoticeKind, OutcomeKind, Reason, RunKey, RunState
from engine.outbound.exchange import Outcome
from engine.rules.notices import About, is_late, notice_row
from engine.rules.retry import Verdict, judge
from engine.stages.held import HeldRun, HeldRuns
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import BATCH_ROWS_MAX

# Outcomes gather for this long: a batch of 1,000 costs half as much a row as one of 30.
GATHER_MS = 60

# While many runs are ready to be fired, outcomes wait up to this long: MySQL's work would take the core that fires.
# Nothing starts later for it; only the window is wider in which a crash fires a run again.
HOLD_BACK_MS = 3_000

# A run whose scheduled time is older than this may have been passed by the mark, and then has a row in deferred.
MAYBE_SWEPT_MS = 30_000

# A run that was held up by a limit is claimed again after this.
HELD_PAUSE_MS = 2_000

# Reasons for which a claimed run goes back without having been called.
UNCALLED = frozenset({Reason.GIVEN_BACK, Reason.HELD})

ANSWER_BYTES_MAX = 1_024
DETAIL_CHARS_MAX = 255


class Settlement(NamedTuple):
    """One run's end of an attempt, decided."""

    run: HeldRun
    outcome: Outcome
    verdict: Verdict
    tries: int

    @property
    def row(self) -> tuple[object, ...]:
        """A row of ``settle_runs``."""
        outcome = self.outcome
        finished = self.verdict.state != RunState.WAITING
        called = self.called
        return (
            *self.run.key,
            self.run.attempt,
            self.verdict.state,
            self.tries,
            self.verdict.reason,
            outcome.kind if called else None,
            outcome.status,
            outcome.started_ms if called else None,
            outcome.finished_ms if finished else None,
            int(self.run.demoted),
        )

    @property
    def called(self) -> bool:
        """Whether there was a call, or at least the attempt at one."""
        return self.verdict.reason not in UNCALLED and self.verdict.state != RunState.SKIPPED

    @property
    def plain(self) -> bool:
        """A first success: one row to write and nothing else."""
        return self.verdict.state == RunState.SUCCEEDED and not self.run.deferred and not self.run.overlap


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
        self._is_told = is_told
        self._is_busy = is_busy
        self._draw = draw
        self._waiting: deque[Settlement] = deque()
        self._waiting_since_ms = 0
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

    def held_up(self, run: HeldRun) -> None:
        """A run that waits for a limit of its own: due again a little later, no try is counted, and it is not late."""
        self._return(run, Reason.HELD, HELD_PAUSE_MS)

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
            self._waiting_since_ms = self._clock.now_ms()
            self._wake_later()
        self._waiting.append(settlement)

    def _wake_later(self) -> None:
        asyncio.get_running_loop().call_later(GATHER_MS / 1000, self.wake)

    async def run_once(self, now_ms: int) -> bool:
        """Write one batch; True if another full one waits. While much is ready, outcomes wait a bounded while."""
        if not self._waiting:
            return False
        if self._is_busy() and now_ms - self._waiting_since_ms < HOLD_BACK_MS:
            self._wake_later()
            return False
        self._waiting_since_ms = now_ms
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
                settled = await self._write_of_worker(connection, mine, worker_id, now_ms)
            self._tell(settled)

    async def _write_of_worker(
        self, connection: Connection, batch: Sequence[Settlement], worker_id: int, now_ms: int
    ) -> Sequence[Settlement]:
        """Returns those that were still ours."""
        fence = {**_bounds(batch), "worker_id": worker_id}
        bytes_max = self._shard.packet_bytes_max
        if not all(settlement.plain for settlement in batch) or self._maybe_swept(batch, now_ms):
            batch = await self._still_mine(connection, batch, fence)
            await self._write_beside(connection, batch, now_ms)
        if batch:
            rows = [settlement.row for settlement in batch]
            found = await connection.execute_rows("settle_runs", rows, fence, bytes_max=bytes_max)
            if found != len(batch):
                self._events.emit("run.fenced", runs=len(batch) - found, shard=self._shard.index)
            await self._bury(connection, [s for s in batch if s.verdict.state == RunState.FAILED], now_ms)
            await self._notify(connection, batch, now_ms)
        return batch

    async def _still_mine(
        self, connection: Connection, batch: Sequence[Settlement], fence: dict[str, int]
    ) -> Sequence[Settlement]:
        rows = [(*settlement.run.key, settlement.run.attempt) for settlement in batch]
        found = await connection.fetch_rows("lock_held_runs", rows, fence, bytes_max=self._shard.packet_bytes_max)
        mine = {RunKey(*row[:3]) for row in found}
        if len(mine) != len(batch):
            self._events.emit("run.fenced", runs=len(batch) - len(mine), shard=self._shard.index)
        return [settlement for settlement in batch if settlement.run.key in mine]

    async def _write_beside(self, connection: Connection, batch: Sequence[Settlement], now_ms: int) -> None:
        """What stands in other tables: failed attempts, deferred rows, active rows."""
        bytes_max = self._shard.packet_bytes_max
        attempts = [_attempt_row(settlement) for settlement in batch if _failed_attempt(settlement)]
        if attempts:
            await connection.execute_rows("insert_attempts", attempts, bytes_max=bytes_max)
        waiting = [settlement for settlement in batch if settlement.verdict.state == RunState.WAITING]
        ended = [settlement for settlement in batch if settlement.verdict.state != RunState.WAITING]
        if waiting:
            rows = [(*s.run.key, s.verdict.due_at_ms, s.verdict.reason, s.run.priority) for s in waiting]
            await connection.execute_rows("insert_deferred", rows, bytes_max=bytes_max)
        if ended:
            keys = [settlement.run.key for settlement in ended]
            await connection.execute_rows("delete_deferred", keys, bytes_max=bytes_max)
        overlap = [settlement.run.key for settlement in ended if settlement.run.overlap]
        if overlap:
            await connection.execute_rows("delete_active", overlap, bytes_max=bytes_max)
            jobs = sorted({(key.partition_id, key.job_id) for key in overlap})
            await connection.execute_rows("wake_overlap_waiters", jobs, {"now_ms": now_ms}, bytes_max=bytes_max)

    async def _bury(self, connection: Connection, dead: Sequence[Settlement], now_ms: int) -> None:
        """A final failure goes to the dead letters, whole."""
        if not dead:
            return
        bytes_max = self._shard.packet_bytes_max
        keys = [settlement.run.key for settlement in dead]
        values = {**_bounds(dead), "now_ms": now_ms}
        await connection.execute_rows("insert_dead_letters", keys, values, bytes_max=bytes_max)

    async def _notify(self, connection: Connection, batch: Sequence[Settlement], now_ms: int) -> None:
        """What its tenant is to be told goes into the outbox, in the same transaction."""
        abouts = [about for settlement in batch if (about := self._about(settlement)) is not None]
        if abouts:
            rows = sorted(notice_row(about, now_ms) for about in abouts)
            await connection.execute_rows("insert_notices", rows, bytes_max=self._shard.packet_bytes_max)

    def _about(self, settlement: Settlement) -> About | None:
        run, state = settlement.run, settlement.verdict.state
        if state == RunState.FAILED:
            return About(NoticeKind.FAILED, run.key, run.tenant_id, run.version)
        if not self._is_told(run.tenant_id, run.call.definition):
            return None
        if state == RunState.SKIPPED:
            return About(NoticeKind.SKIPPED, run.key, run.tenant_id, run.version)
        first_call = run.tries == 0 and settlement.called
        if first_call and is_late(run.call.definition, settlement.outcome.started_ms - run.key.scheduled_at_ms):
            return About(NoticeKind.LATE, run.key, run.tenant_id, run.version)
        return None

    def _maybe_swept(self, batch: Sequence[Settlement], now_ms: int) -> bool:
        return any(settlement.run.key.scheduled_at_ms < now_ms - MAYBE_SWEPT_MS for settlement in batch)

    def _tell(self, settled: Sequence[Settlement]) -> None:
        """One event for the batch: it costs less than one for each run, and the metrics sort them out at once."""
        if not settled:
            return
        ends = Counter((settlement.verdict.state, settlement.outcome.kind) for settlement in settled)
        lags_ms: dict[int, list[int]] = {}
        for run, outcome, _, _ in (settlement for settlement in settled if settlement.called):
            lags_ms.setdefault(run.priority, []).append(outcome.started_ms - run.due_ms)
        self._events.emit(
            "run.settled",
            runs=len(settled),
            ends={f"{state.name}.{kind.name}".lower(): runs for (state, kind), runs in ends.items()},
            lags_ms=lags_ms,
            shard=self._shard.index,
        )


def no_call(now_ms: int) -> Outcome:
    """The outcome of a run for which nothing was tried."""
    return Outcome(OutcomeKind.CANCELLED, None, None, b"", now_ms, now_ms, False, "", "")


def _failed_attempt(settlement: Settlement) -> bool:
    return settlement.called and settlement.verdict.state != RunState.SUCCEEDED


def _attempt_row(settlement: Settlement) -> tuple[object, ...]:
    run, outcome = settlement.run, settlement.outcome
    return (
        *run.key,
        run.attempt,
        run.worker_id,
        outcome.kind,
        outcome.status,
        outcome.started_ms,
        outcome.finished_ms,
        outcome.reason[:DETAIL_CHARS_MAX],
        run.call.kept_answer(outcome.body, ANSWER_BYTES_MAX),
    )


def _bounds(batch: Sequence[Settlement]) -> dict[str, int]:
    times = [settlement.run.key.scheduled_at_ms for settlement in batch]
    return {"from_at": min(times), "to_at": max(times)}
