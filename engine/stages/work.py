"""Work: function runs are handed to tenants' workers, and settled by what these say.

A process of the API is a door: it claims in its own name, for a worker that asks, what waits in the lane of a function,
and gives the worker a token that names run and attempt. From then on the run is the worker's, through whichever door it
speaks: every heartbeat renews its lease, which is the ``due_at`` of the run's row in ``deferred``; an end is settled by
the same rules and statements as that of a call. What nobody renews is taken back by engine/stages/lapse.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import NamedTuple

from engine.clock import Clock
from engine.errors import CommitUnknown
from engine.events import Events
from engine.model import Definition, OutcomeKind, Overlap, Reason, RunKey, RunState, is_door, mint_door_id
from engine.rows import Report
from engine.rules.work import KINDS, Deed, Stop, lease_until_ms, stop_of
from engine.stages.held import HeldRun
from engine.stages.settlements import Settlement
from engine.stages.take import Take, Taking, Waiting
from engine.stages.versions import CallPlan, Versions
from engine.stages.work_ends import End, Ends, Fence, WorkRow, fence_of, lock_work
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import Value

# Answers to more questions than this would not fit one statement well.
LANES_PER_LOOK = 2_000

# Runs that a door remembers as given: some 500 bytes each. What is forgotten is only asked for again.
GIVEN_MAX = 20_000

class Class(NamedTuple):
    """Runs of one lane and one priority."""

    lane: int
    priority: int


class Candidate(NamedTuple):
    """A run that a worker may have; somebody else may be faster."""

    lane: int
    priority: int
    due_at_ms: int
    key: RunKey


class Claimed(NamedTuple):
    """A run that a worker has now."""

    run: HeldRun
    name: str
    trigger: int


class Beat(NamedTuple):
    """A worker's sign of life; ``progress`` in percent."""

    fence: Fence
    progress: int | None
    note: str | None


class Renewed(NamedTuple):
    """A heartbeat's answer."""

    stop: Stop | None
    lease_until_ms: int


class Stale(NamedTuple):
    """The worker has lost this run: how it stands now, or None where nothing is known of it any more."""

    run: WorkRow | None


class Given(NamedTuple):
    """A run as this door has given it to a worker: what its end need not ask for again."""

    row: WorkRow
    call: CallPlan


class _Otherwise(Exception):  # noqa: N818 - an answer: what the door knew of its runs is not so any more
    """The transaction is rolled back."""


class Work:
    """What one door does on one shard. Times are by this process's clock, which follows the shards'."""

    def __init__(
        self,
        shard: Shard,
        door_id: int,
        versions: Versions,
        is_told: Callable[[int, Definition], bool],
        clock: Clock,
        events: Events,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.shard = shard
        self.door_id = door_id
        self._versions = versions
        self._clock = clock
        self._events = events
        self._taking = Taking(shard, versions, events, is_told)
        self._ends = Ends(shard, versions, is_told, events, draw)
        self._unknown: list[HeldRun] = []
        self._given: dict[RunKey, Given] = {}
        self.counts = {"claimed": 0, "ended": 0, "stale": 0}

    async def look(self, lanes: Sequence[int]) -> dict[Class, int]:
        """When the first run of each class is due, milliseconds since the epoch; those without any are left out."""
        questions = [
            ("work_ahead", {"lanes": lanes[start : start + LANES_PER_LOOK]})
            for start in range(0, len(lanes), LANES_PER_LOOK)
        ]
        now, *answers = await self.shard.ask(("shard_now", {}), *questions)
        self._clock.follow(int(now.rows[0][0]), self.shard.index)
        return {Class(row[0], row[1]): row[2] for answer in answers for row in answer.rows}

    async def candidates(self, classes: Sequence[Class], rows_max: int) -> list[Candidate]:
        """What is due in these classes, at most so many of each."""
        common = {"now_ms": self._clock.now_ms(), "rows_max": rows_max}
        answers = await self.shard.ask(*(("due_work", common | each._asdict()) for each in classes))
        return [
            Candidate(*each, row[3], RunKey(*row[:3]))
            for each, answer in zip(classes, answers, strict=True)
            for row in answer.rows
        ]

    async def claim(self, keys: Iterable[RunKey], wanted: Set[tuple[int, str]]) -> list[Claimed]:
        """Claim what of these is still free and of a function that is wanted: (tenant, name)."""
        take, now_ms = Take(), 0

        async def transaction() -> None:
            nonlocal take, now_ms
            now_ms = self._clock.now_ms()
            async with self.shard.transaction() as connection:
                take = await self._taking.take(connection, sorted(keys), self.door_id, now_ms, now_ms, wanted)

        try:
            await self.shard.retrying(transaction)
        except CommitUnknown:
            self._unknown = take.claimed
            raise
        rows = {row.key: row for row in take.rows}
        self._remember(take, rows, now_ms)
        if take.claimed:
            self.counts["claimed"] += len(take.claimed)
            self._events.emit("work.claimed", runs=len(take.claimed), shard=self.shard.index)
        return [Claimed(run, rows[run.key].name or "", rows[run.key].trigger) for run in take.claimed]

    def _remember(self, take: Take, rows: Mapping[RunKey, Waiting], now_ms: int) -> None:
        for run in take.claimed:
            waiting = rows[run.key]
            row = WorkRow(
                *run.key, run.tenant_id, run.version, RunState.RUNNING, run.priority, waiting.trigger, run.attempt,
                run.tries, run.worker_id, run.lease_until_ms, 0, None, None, None, now_ms, None, waiting.name,
            )  # fmt: skip
            self._given[run.key] = Given(row, run.call)
        for key in list(islice(self._given, max(0, len(self._given) - GIVEN_MAX))):
            del self._given[key]

    async def give_back_unknown(self) -> None:
        """After a lost COMMIT of a claim: what stands in our name has no worker, and goes back."""
        if not self._unknown:
            return
        unknown = self._unknown
        await self.give_back(unknown)
        self._unknown = []
        self._events.emit("commit.resolved", step="work", stood=len(unknown), asked=len(unknown))

    async def give_back(self, runs: Iterable[HeldRun]) -> None:
        """Runs whose worker has gone before it was told of them; no try is counted."""
        ends = [End(fence_of(run), Deed.UNSTARTED) for run in runs]
        if ends:
            await self.settle(ends)

    async def renew(self, beats: Sequence[Beat]) -> Sequence[Renewed | Stale | Exception]:
        """Heartbeats: leases renewed, what the workers said of their runs written down."""
        return await self.shard.retrying(lambda: self._renew(beats))

    async def _renew(self, beats: Sequence[Beat]) -> list[Renewed | Stale | Exception]:
        now_ms = self._clock.now_ms()
        bytes_max = self.shard.packet_bytes_max
        async with self.shard.transaction() as connection:
            rows = await lock_work(connection, [beat.fence.key for beat in beats], bytes_max)
            answers = [_answer(rows.get(beat.fence.key), beat, now_ms) for beat in beats]
            leases = {
                beat.fence.key: answer.lease_until_ms
                for beat, answer in zip(beats, answers, strict=True)
                if isinstance(answer, Renewed) and answer.stop is None
            }
            if leases:
                due = sorted((*key, until_ms, Reason.SCHEDULED) for key, until_ms in leases.items())
                await connection.execute_rows("set_deferred_due", due, bytes_max=bytes_max)
            said = {
                beat.fence.key: (*beat.fence.key, beat.fence.attempt, now_ms, beat.progress, beat.note, None)
                for beat in beats
                if beat.fence.key in leases and (beat.progress is not None or beat.note is not None)
            }
            if said:
                await connection.execute_rows("write_reports", sorted(said.values()), bytes_max=bytes_max)
        self._tell_stale(answers)
        return list(answers)

    async def settle(self, ends: Sequence[End]) -> Sequence[WorkRow | Stale | Exception]:
        """Each run as it stands after its end; Stale where the worker has lost it, and nothing was changed."""
        given = self._completed(ends)
        done = await self._complete(given) if given else {}
        rest = [end for place, end in enumerate(ends) if place not in done]
        others = iter(await self._settle_all(rest) if rest else [])
        return [done[place] if place in done else next(others) for place in range(len(ends))]

    def _completed(self, ends: Sequence[End]) -> dict[int, tuple[WorkRow, End, CallPlan]]:
        """Those that end well what this door has given itself, by their places, in the order of their keys."""
        found: dict[int, tuple[WorkRow, End, CallPlan]] = {}
        for place, end in enumerate(ends):
            given = self._given.pop(end.fence.key, None)
            if given is None or end.deed is not Deed.COMPLETE or not given.row.held_by(end.fence):
                continue
            if given.call.definition.overlap == Overlap.ALLOW:
                found[place] = given.row, end, given.call
        return dict(sorted(found.items(), key=lambda item: item[1][0].key))

    async def _complete(self, given: Mapping[int, tuple[WorkRow, End, CallPlan]]) -> dict[int, WorkRow]:
        """Settled by their fences alone; nothing of them where the shard knows otherwise of one."""

        async def transaction() -> Sequence[Settlement]:
            now_ms = self._clock.now_ms()
            async with self.shard.transaction() as connection:
                settled = await self._ends.write_completed(connection, list(given.values()), now_ms)
                if not settled:
                    raise _Otherwise
                await self._write_results(connection, [end for _, end, _ in given.values()], now_ms)
            return settled

        try:
            settled = await self.shard.retrying(transaction)
        except _Otherwise:
            return {}
        self._note_ended(settled)
        return {
            place: _after(row, settlement)
            for (place, (row, _, _)), settlement in zip(given.items(), settled, strict=True)
        }

    async def _settle_all(self, ends: Sequence[End]) -> list[WorkRow | Stale]:
        async def transaction() -> tuple[list[WorkRow | Stale], Sequence[Settlement]]:
            async with self.shard.transaction() as connection:
                return await self._settle(connection, ends, self._clock.now_ms())

        answers, settled = await self.shard.retrying(transaction)
        self._note_ended(settled)
        self._tell_stale(answers)
        return answers

    def _note_ended(self, settled: Sequence[Settlement]) -> None:
        self.counts["ended"] += len(settled)
        self._ends.tell(settled)

    async def _settle(
        self, connection: Connection, ends: Sequence[End], now_ms: int
    ) -> tuple[list[WorkRow | Stale], Sequence[Settlement]]:
        """The runs after their ends, in the order of these, and what was settled."""
        bytes_max = self.shard.packet_bytes_max
        rows = await lock_work(connection, [end.fence.key for end in ends], bytes_max)
        mine: dict[RunKey, End] = {}
        for end in ends:
            row = rows.get(end.fence.key)
            if row is not None and row.held_by(end.fence):
                mine.setdefault(end.fence.key, end)
        held = {key: (rows[key], end) for key, end in mine.items()}
        settled = await self._ends.write_locked(connection, held, now_ms) if held else []
        rows |= {settlement.run.key: _after(rows[settlement.run.key], settlement) for settlement in settled}
        succeeded = [end for key, end in mine.items() if rows[key].state == RunState.SUCCEEDED]
        await self._write_results(connection, succeeded, now_ms)
        return [_said(rows.get(end.fence.key), end) for end in ends], settled

    async def _write_results(self, connection: Connection, ends: Sequence[End], now_ms: int) -> None:
        results = sorted(
            (*end.fence.key, end.fence.attempt, now_ms, None, None, end.result)
            for end in ends
            if end.result is not None
        )
        if results:
            await connection.execute_rows("write_reports", results, bytes_max=self.shard.packet_bytes_max)

    def _tell_stale(self, answers: Sequence[object]) -> None:
        stale = sum(isinstance(answer, Stale) for answer in answers)
        if stale:
            self.counts["stale"] += stale
            self._events.emit("work.stale", runs=stale, shard=self.shard.index)


def new_door() -> int:
    """The id of a door that opens now."""
    door_id = mint_door_id()
    assert is_door(door_id)  # noqa: S101 - what signals and reaping tell it by
    return door_id


def _answer(row: WorkRow | None, beat: Beat, now_ms: int) -> Renewed | Stale:
    if row is None or not row.held_by(beat.fence):
        return Stale(row)
    stop = stop_of(bool(row.cancel_requested), now_ms, row.deadline_ms)
    return Renewed(stop, lease_until_ms(now_ms, row.deadline_ms) if stop is None else now_ms)


def _said(row: WorkRow | None, end: End) -> WorkRow | Stale:
    """Said again after its answer was lost, an end that stands is answered as before."""
    if row is None:
        return Stale(None)
    if row.given_by(end.fence) and row.state != RunState.RUNNING and _stands(row, end.deed):
        return row
    return Stale(row)


def _stands(row: WorkRow, deed: Deed) -> bool:
    if row.cancel_requested and row.state == RunState.CANCELLED:
        return True
    if deed is Deed.UNSTARTED:
        return row.reason == Reason.GIVEN_BACK
    if deed is Deed.RELEASE:
        return row.outcome == OutcomeKind.WORKER_LOST and row.reason in (None, Reason.RETRY)
    return row.outcome == KINDS[deed]


def _after(row: WorkRow, settlement: Settlement) -> WorkRow:
    """The row as it stands once the settlement is written."""
    outcome, verdict = settlement.outcome, settlement.verdict
    return row._replace(
        state=verdict.state,
        tries=settlement.tries,
        reason=verdict.reason,
        outcome=outcome.kind if settlement.called else None,
        started_at_ms=outcome.started_ms if settlement.called else None,
        finished_at_ms=None if verdict.state == RunState.WAITING else outcome.finished_ms,
    )


async def report_of(shard: Shard, partition_id: int, scheduled_at_ms: int, job_id: int) -> Report | None:
    """Of one run; None where nothing was said."""
    key: dict[str, Value] = {"partition_id": partition_id, "scheduled_at": scheduled_at_ms, "job_id": job_id}
    rows = (await shard.execute("report_of_run", key)).rows
    return Report(*rows[0]) if rows else None
