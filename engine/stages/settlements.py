"""Settlements: how attempts ended, decided, and how that is written: fenced, sorted, with all that stands beside it.

Whoever holds runs settles through here: executors what they have called, doors what workers have told, and the keeper
what nobody answers for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.events import Events
from engine.model import Definition, NoticeKind, OutcomeKind, Reason, RunKey, RunState
from engine.outbound.exchange import Outcome
from engine.rules.lanes import offered_lane
from engine.rules.notices import About, is_late, notice_row
from engine.rules.retry import Verdict
from engine.stages.held import HeldRun
from engine.store.connection import Connection, Part
from engine.store.shard import Shard
from engine.store.statements import time_bounds

# A run whose scheduled time is older than this may have been passed by the mark, and then has a row in deferred.
MAYBE_SWEPT_MS = 30_000

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
            self.reason,
            outcome.kind if called else None,
            outcome.status,
            outcome.started_ms if called and not self._before_its_second else None,
            outcome.finished_ms if finished else None,
            int(self.run.demoted),
        )

    @property
    def _before_its_second(self) -> bool:
        """Cancelled while it was held for its second: it never started, and is not early."""
        outcome = self.outcome
        cancelled = outcome.kind == OutcomeKind.CANCELLED and not outcome.bytes_sent
        return cancelled and outcome.started_ms < self.run.key.scheduled_at_ms

    @property
    def reason(self) -> Reason | None:
        """A run that a limit of its own held up says so to the end: its lag is not the service's."""
        return Reason.HELD if self.verdict.reason is None and self.run.held else self.verdict.reason

    @property
    def end(self) -> str:
        """State and outcome, for the metrics."""
        outcome = Reason.HELD if self.verdict.reason == Reason.HELD else self.outcome.kind
        return f"{self.verdict.state.name}.{outcome.name}".lower()

    @property
    def called(self) -> bool:
        """Whether there was a call, or at least the attempt at one."""
        return self.verdict.reason not in UNCALLED and self.verdict.state != RunState.SKIPPED

    @property
    def plain(self) -> bool:
        """A first success: one row to write and nothing else."""
        return self.verdict.state == RunState.SUCCEEDED and not self.run.deferred and not self.run.overlap


class Settlements:
    """Writes settlements of one shard's runs. ``is_told``: whether anybody hears of a job's late and skipped runs."""

    def __init__(self, shard: Shard, events: Events, is_told: Callable[[int, Definition], bool]) -> None:
        self._shard = shard
        self._events = events
        self._is_told = is_told

    async def write(
        self, connection: Connection, batch: Sequence[Settlement], worker_id: int, now_ms: int
    ) -> Sequence[Settlement]:
        """All of one holder's, in one transaction; returns those that were still its own."""
        fence = _fence(batch, worker_id)
        plain = all(settlement.plain for settlement in batch) and not self._maybe_swept(batch, now_ms)
        if not plain:
            batch = await self._still_mine(connection, batch, fence)
        if batch:
            await self._write(connection, batch, fence, now_ms, plain)
        return batch

    async def write_locked(
        self, connection: Connection, batch: Sequence[Settlement], worker_id: int, now_ms: int
    ) -> None:
        """The same for runs that this transaction has locked and seen to be the holder's own."""
        await self._write(connection, batch, _fence(batch, worker_id), now_ms, plain=False)

    async def write_completed(
        self, connection: Connection, batch: Sequence[Settlement], worker_id: int, now_ms: int
    ) -> bool:
        """Successes of runs without overlap, fenced alone, none of them locked or read before: in one round trip.

        False where one was not the holder's own any more, or is to be cancelled: then the transaction is rolled back.
        """
        answers = await connection.run_parts(
            Part("complete_runs", _fence(batch, worker_id), [each.row for each in batch]),
            Part("delete_deferred", rows=[each.run.key for each in batch]),
            bytes_max=self._shard.packet_bytes_max,
        )
        if answers[0].found != len(batch):
            return False
        await self._notify(connection, batch, now_ms)
        return True

    async def _write(
        self, connection: Connection, batch: Sequence[Settlement], fence: dict[str, int], now_ms: int, plain: bool
    ) -> None:
        """The runs, and unless they are plain all that stands beside them."""
        parts = [Part("settle_runs", fence, [settlement.row for settlement in batch])]
        ended = [] if plain else [s.run.key for s in batch if s.verdict.state != RunState.WAITING]
        if ended:
            parts.append(Part("delete_deferred", rows=ended))
        found = (await connection.run_parts(*parts, bytes_max=self._shard.packet_bytes_max))[0].found
        if found != len(batch):
            self._events.emit("run.fenced", runs=len(batch) - found, shard=self._shard.index)
        if not plain:
            await self._write_beside(connection, batch, now_ms)
        await self._bury(connection, [s for s in batch if s.verdict.state == RunState.FAILED], now_ms)
        await self._notify(connection, batch, now_ms)

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
        """What stands in other tables: failed attempts, deferred rows of those that wait, active rows."""
        bytes_max = self._shard.packet_bytes_max
        attempts = [_attempt_row(settlement) for settlement in batch if _failed_attempt(settlement)]
        if attempts:
            await connection.execute_rows("insert_attempts", attempts, bytes_max=bytes_max)
        waiting = [settlement for settlement in batch if settlement.verdict.state == RunState.WAITING]
        if waiting:
            rows = [_deferred_row(settlement) for settlement in waiting]
            await connection.execute_rows("insert_into_lanes", rows, bytes_max=bytes_max)
        overlap = [s.run.key for s in batch if s.run.overlap and s.verdict.state != RunState.WAITING]
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
        values = {**time_bounds(keys), "now_ms": now_ms}
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
        first_call = run.tries == 0 and settlement.called and not run.held
        if first_call and is_late(run.call.definition, settlement.outcome.started_ms - run.key.scheduled_at_ms):
            return About(NoticeKind.LATE, run.key, run.tenant_id, run.version)
        return None

    def _maybe_swept(self, batch: Sequence[Settlement], now_ms: int) -> bool:
        return any(settlement.run.key.scheduled_at_ms < now_ms - MAYBE_SWEPT_MS for settlement in batch)

    def tell(self, settled: Sequence[Settlement]) -> None:
        """One event for the batch: it costs less than one for each run, and the metrics sort them out at once."""
        if not settled:
            return
        lags_ms: dict[int, list[int]] = {}
        for run, outcome, _, _ in (settlement for settlement in settled if settlement.called):
            lags_ms.setdefault(run.priority, []).append(outcome.started_ms - run.due_ms)
        self._events.emit(
            "run.settled",
            runs=len(settled),
            ends=dict(Counter(settlement.end for settlement in settled)),
            lags_ms=lags_ms,
            shard=self._shard.index,
        )


def no_call(now_ms: int) -> Outcome:
    """The outcome of a run for which nothing was tried."""
    return Outcome(OutcomeKind.CANCELLED, None, None, b"", now_ms, now_ms, False, "", "")


def _failed_attempt(settlement: Settlement) -> bool:
    return settlement.called and settlement.verdict.state != RunState.SUCCEEDED


def _deferred_row(settlement: Settlement) -> tuple[object, ...]:
    """A row of ``insert_into_lanes``; an open run that comes again has been let in already."""
    run, verdict = settlement.run, settlement.verdict
    lane = offered_lane(run.key.partition_id, run.tenant_id, run.call.definition)
    return (*run.key, verdict.due_at_ms, verdict.reason, run.priority, lane, run.tenant_id)


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


def _fence(batch: Sequence[Settlement], worker_id: int) -> dict[str, int]:
    return {**time_bounds(settlement.run.key for settlement in batch), "worker_id": worker_id}
