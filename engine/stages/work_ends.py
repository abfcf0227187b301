"""Ends of work: how a worker's hold of a run ends, by its own word or because it is taken from it, decided and written.

By the same rules and statements as the end of a call. The runs are locked before: whoever is not their holder any more
is told so by engine/stages/work.py, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from engine.events import Events
from engine.model import UNREADABLE, Definition, Overlap, RunKey, RunState
from engine.outbound.exchange import Outcome
from engine.outbound.target import Guard
from engine.rules.retry import Verdict
from engine.rules.work import KINDS, Deed, Lapse, judge_work, tries_after
from engine.stages.held import HeldRun
from engine.stages.settlements import Settlement, Settlements
from engine.stages.versions import LEASE_BEYOND_TIMEOUT_MS, CallPlan, Versions
from engine.store.connection import Connection, Row
from engine.store.shard import Shard
from engine.store.statements import time_bounds

# What a run is settled by whose version cannot be read: the default policies.
_UNREADABLE = CallPlan(UNREADABLE, Guard())


class Fence(NamedTuple):
    """Which attempt of which run, held in whose name and for which tenant's worker: what a token says."""

    key: RunKey
    attempt: int
    worker_id: int
    tenant_id: int


class End(NamedTuple):
    """How a worker ends its hold of a run. ``result`` is JSON."""

    fence: Fence
    deed: Deed
    error: str = ""
    retry_after: str | None = None
    result: bytes | None = None


class WorkRow(NamedTuple):
    """A row of ``lock_work``; after an end, the run as it stands then."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int
    tenant_id: int
    version: int
    state: int
    priority: int
    trigger: int
    attempt: int
    tries: int
    worker_id: int | None
    lease_until_ms: int | None
    cancel_requested: int
    reason: int | None
    outcome: int | None
    status_code: int | None
    started_at_ms: int | None
    finished_at_ms: int | None
    name: str | None

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)

    @property
    def version_key(self) -> tuple[int, int, int]:
        return self.partition_id, self.job_id, self.version

    @property
    def deadline_ms(self) -> int:
        """When the time of the attempt is over."""
        return (self.lease_until_ms or 0) - LEASE_BEYOND_TIMEOUT_MS

    def held_by(self, fence: Fence) -> bool:
        return self.state == RunState.RUNNING and self.given_by(fence)

    def given_by(self, fence: Fence) -> bool:
        """Whether it is, or was at its end, in the hands of whom the fence names."""
        return (self.attempt, self.worker_id, self.tenant_id) == (fence.attempt, fence.worker_id, fence.tenant_id)


class Ends:
    """Settles what workers say, and what becomes of runs that are taken from them."""

    def __init__(
        self,
        shard: Shard,
        versions: Versions,
        is_told: Callable[[int, Definition], bool],
        events: Events,
        draw: Callable[[], float],
    ) -> None:
        self._shard = shard
        self._versions = versions
        self._settlements = Settlements(shard, events, is_told)
        self.tell = self._settlements.tell
        self._draw = draw

    async def write_locked(
        self, connection: Connection, ends: Mapping[RunKey, tuple[WorkRow, End | Lapse]], now_ms: int
    ) -> list[Settlement]:
        """Settle runs that are locked and still held."""
        calls = await self._versions.load(
            connection, [row.version_key for row, _ in ends.values()], self._shard.packet_bytes_max
        )
        settled = [self._settlement(row, end, calls[row.version_key], now_ms) for row, end in ends.values()]
        for worker_id in sorted({settlement.run.worker_id for settlement in settled}):
            batch = sorted(
                (settlement for settlement in settled if settlement.run.worker_id == worker_id),
                key=lambda settlement: settlement.run.key,
            )
            await self._settlements.write_locked(connection, batch, worker_id, now_ms)
        return settled

    async def write_completed(
        self, connection: Connection, ends: Sequence[tuple[WorkRow, End, CallPlan]], now_ms: int
    ) -> list[Settlement]:
        """Settle what one holder has completed, by what it knows itself of its runs, in the order of their keys.

        Nothing if the shard knows otherwise of one: then the transaction is to be rolled back.
        """
        settled = [self._settlement(row, end, call, now_ms) for row, end, call in ends]
        worker_id = settled[0].run.worker_id
        return settled if await self._settlements.write_completed(connection, settled, worker_id, now_ms) else []

    def _settlement(self, row: WorkRow, end: End | Lapse, call: CallPlan | Exception, now_ms: int) -> Settlement:
        if isinstance(call, Exception):  # it is judged all the same; should it run again, claiming sets it aside
            call = _UNREADABLE
        deed = end.deed if isinstance(end, End) else end
        if row.cancel_requested:
            deed = Lapse.CANCELLED
        tries = tries_after(deed, row.tries)
        verdict: Verdict = judge_work(
            deed,
            tries,
            call.definition.retry,
            scheduled_at_ms=row.scheduled_at_ms,
            now_ms=now_ms,
            retry_after=end.retry_after if isinstance(end, End) else None,
            draw=self._draw,
        )
        error = end.error if isinstance(end, End) else ""
        started_ms = row.started_at_ms if row.started_at_ms is not None else now_ms
        kind = KINDS[deed]
        detail = error or _DETAILS.get(deed, kind.name.lower())
        outcome = Outcome(kind, None, None, error.encode(), started_ms, now_ms, True, detail, "")
        return Settlement(_held_run(row, call, started_ms, self._shard.index), outcome, verdict, tries)


_DETAILS: dict[Deed | Lapse, str] = {Deed.RELEASE: "released", Lapse.DEADLINE: "deadline", Lapse.SILENT: "worker_lost"}


async def lock_work(connection: Connection, keys: Sequence[RunKey], bytes_max: int) -> dict[RunKey, WorkRow]:
    """These runs, locked in the order of their keys."""
    wanted = sorted(set(keys))
    rows: list[Row] = await connection.fetch_rows("lock_work", wanted, time_bounds(wanted), bytes_max=bytes_max)
    return {RunKey(*row[:3]): WorkRow(*row) for row in rows}


def _held_run(row: WorkRow, call: CallPlan, started_ms: int, shard_index: int) -> HeldRun:
    """``due_ms`` is the scheduled time for a first try: what its start is measured by."""
    return HeldRun(
        row.key,
        worker_id=row.worker_id or 0,
        attempt=row.attempt,
        tries=row.tries,
        tenant_id=row.tenant_id,
        version=row.version,
        priority=row.priority,
        due_ms=row.scheduled_at_ms if row.tries == 0 else started_ms,
        lease_until_ms=row.lease_until_ms or 0,
        deferred=True,
        # What overlaps cannot be known of a version that cannot be read: then its job's open run is this one.
        overlap=call is _UNREADABLE or call.definition.overlap != Overlap.ALLOW,
        call=call,
        shard_index=shard_index,
    )


def fence_of(run: HeldRun) -> Fence:
    """What its holder's token says."""
    return Fence(run.key, run.attempt, run.worker_id, run.tenant_id)
