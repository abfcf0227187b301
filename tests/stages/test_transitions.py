"""Every state of a run meets every event on a real shard: what may happen does, and everything else changes nothing.

The tables name what changes; a pair that stands in none of them leaves its run as it was. After each event a run's rows
in other tables fit its state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from engine.config import Dsn
from engine.model import OPEN_STATES, Cron, OutcomeKind, Reason, RunAt, RunKey, RunState, mint_worker_id
from engine.outbound.exchange import Outcome
from engine.stages.held import HeldRun
from engine.store.changes import Windows, cancel_run, delete_job, pause_job, take_back
from engine.store.connection import Row
from engine.store.dead_letters import retry_dead_letters
from engine.store.jobs import JobRow, find_jobs
from tests.support.changes import edited
from tests.support.world import TENANT, Worker, World, run_world

RUNNING, WAITING = RunState.RUNNING, RunState.WAITING
SUCCEEDED, FAILED, CANCELLED = RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED
SKIPPED, WITHDRAWN = RunState.SKIPPED, RunState.WITHDRAWN

# Where the runs lie: some time ago, but not missed; or beyond what an edit, a pause and a delete leave to a holder.
LATE_S, AHEAD_S = -100, 100
USED_UP = 99


class Life:
    """One run in each state, each of a job of its own, all planned by one worker, which believes that it holds them."""

    def __init__(self, world: World, holder: Worker, at_ms: int) -> None:
        self.world = world
        self.holder = holder
        self.at_ms = at_ms
        self.runs: dict[RunState, HeldRun] = {}

    async def begin(self) -> Life:
        world = self.world
        await world.rows(f"UPDATE marks SET mark_at = {min(self.at_ms, world.now_ms) - 1_000}")
        ids = {state: await world.job(state.name, RunAt(self.at_ms)) for state in RunState}
        now_ms = world.now_ms
        world.clock.wall_ms = max(now_ms, self.at_ms - 20_000)
        await self.holder.plan_all()
        world.clock.wall_ms = now_ms
        held = {run.key.job_id: run for run in self.holder.runs()}
        self.runs = {state: held[job_id] for state, job_id in ids.items()}
        await self._reach()
        assert await self.states() == {state: state for state in RunState}
        return self

    async def _reach(self) -> None:
        """Each state as its run gets there, where a run does."""
        succeed(self, self.runs[SUCCEEDED])
        fail_for_good(self, self.runs[FAILED])
        end_cancelled(self, self.runs[CANCELLED])
        skip(self, self.runs[SKIPPED])
        give_back(self, self.runs[WAITING])
        await self.holder.settle.finish()
        await self.world.rows(
            f"UPDATE runs SET state = {WITHDRAWN:d}, attempt = 2, worker_id = NULL"
            f" WHERE job_id = {self.runs[WITHDRAWN].key.job_id}"
        )
        for run in self.runs.values():
            run.decided = False
            run.tries = 0

    async def states(self) -> dict[RunState, RunState]:
        """What each has become, by where it was."""
        now = {job_id: RunState(state) for job_id, state in await self.world.rows("SELECT job_id, state FROM runs")}
        return {was: now[run.key.job_id] for was, run in self.runs.items()}

    async def attempts(self) -> dict[int, int]:
        return dict(await self.world.rows("SELECT job_id, attempt FROM runs"))

    async def job(self, state: RunState) -> JobRow:
        name = (TENANT, state.name)
        return (await find_jobs(self.world.shard, [name]))[name]

    async def check(self) -> None:
        """A waiting run has its row in deferred, an ended one has none, a failed one is buried."""
        deferred = {row[0] for row in await self.world.rows("SELECT job_id FROM deferred")}
        buried = {row[0] for row in await self.world.rows("SELECT job_id FROM dead_letters")}
        for job_id, state, worker_id in await self.world.rows("SELECT job_id, state, worker_id FROM runs"):
            assert job_id in deferred or state != WAITING, (job_id, RunState(state))
            assert job_id not in deferred or state in OPEN_STATES, (job_id, RunState(state))
            assert (job_id in buried) == (state == FAILED), (job_id, RunState(state))
            assert worker_id is not None or state != RUNNING


Write = Callable[[Life, HeldRun], None]


def answered(life: Life, status: int, kind: OutcomeKind = OutcomeKind.ANSWERED) -> Outcome:
    now_ms = life.world.now_ms
    return Outcome(kind, status, None, b"", now_ms, now_ms, True, "", "")


def succeed(life: Life, run: HeldRun) -> None:
    life.holder.settle.settled(run, answered(life, 200))


def fail(life: Life, run: HeldRun) -> None:
    life.holder.settle.settled(run, answered(life, 500))


def fail_for_good(life: Life, run: HeldRun) -> None:
    run.tries = USED_UP
    life.holder.settle.settled(run, answered(life, 500))


def end_cancelled(life: Life, run: HeldRun) -> None:
    life.holder.settle.settled(run, answered(life, 0, OutcomeKind.CANCELLED))


def skip(life: Life, run: HeldRun) -> None:
    life.holder.settle.skipped(run, Reason.TENANT_DISABLED)


def give_back(life: Life, run: HeldRun) -> None:
    life.holder.settle.given_back(run)


def hold_up(life: Life, run: HeldRun) -> None:
    life.holder.settle.held_up(run)


WRITES: dict[str, tuple[Write, RunState]] = {
    "succeed": (succeed, SUCCEEDED),
    "fail": (fail, WAITING),
    "fail for good": (fail_for_good, FAILED),
    "end cancelled": (end_cancelled, CANCELLED),
    "skip": (skip, SKIPPED),
    "give back": (give_back, WAITING),
    "hold up": (hold_up, WAITING),
}


def lives(dsn: Dsn, at_s: int, body: Callable[[Life], Awaitable[None]]) -> None:
    async def world_body(world: World) -> None:
        holder = await world.worker().join()
        life = await Life(world, holder, world.second(at_s)).begin()
        attempts = await life.attempts()
        await body(life)
        after = await life.attempts()
        assert all(after[job_id] >= attempt for job_id, attempt in attempts.items())
        await life.check()

    run_world(dsn, world_body)


def unchanged_but(changes: dict[RunState, RunState]) -> dict[RunState, RunState]:
    return {state: changes.get(state, state) for state in RunState}


@pytest.mark.parametrize("event", WRITES)
def test_p3_what_a_holder_writes_reaches_a_run_that_it_holds_and_no_other(shard_dsn: Dsn, event: str) -> None:
    write, becomes = WRITES[event]

    async def body(life: Life) -> None:
        for run in life.runs.values():
            write(life, run)
        await life.holder.settle.finish()
        assert await life.states() == unchanged_but({RUNNING: becomes})

    lives(shard_dsn, LATE_S, body)


async def owner_of_all(world: World) -> Worker:
    """Another worker, which has taken every partition."""
    worker = await world.worker().join()
    worker.lease.partitions = world.partitions
    return worker


async def plan_again(life: Life) -> None:
    await life.world.rows(f"UPDATE jobs SET next_run_at = {life.at_ms}")
    other = await owner_of_all(life.world)
    await other.plan_all()


async def claim(life: Life) -> None:
    other = await owner_of_all(life.world)
    await other.claim.run_once(life.world.now_ms)


async def reap(life: Life) -> None:
    await life.holder.lease.release()
    stage = life.world.reap()
    while await stage.run_once(life.world.now_ms):
        pass


async def reap_used_up(life: Life) -> None:
    await life.world.rows(f"UPDATE runs SET tries = {USED_UP} WHERE state = {RUNNING:d}")
    await reap(life)


async def sweep(life: Life) -> None:
    await life.world.sweep().run_once(life.world.now_ms)
    assert await life.world.rows(f"SELECT COUNT(*) FROM marks WHERE mark_at <= {life.at_ms}") == [(0,)]


async def cancel(life: Life) -> None:
    for state, run in life.runs.items():
        cancelled = await cancel_run(life.world.shard, *run.key)
        expected = None if state == WITHDRAWN else CANCELLED if state == WAITING else state
        assert (cancelled and cancelled.state) == expected


async def cancel_and_reap(life: Life) -> None:
    await cancel(life)
    await reap(life)


async def pause(life: Life) -> None:
    for state in RunState:
        await pause_job(life.world.shard, await life.job(state), None, Windows())


async def delete(life: Life) -> None:
    for state in RunState:
        await delete_job(life.world.shard, await life.job(state), Windows())


async def edit(life: Life) -> None:
    for state in RunState:
        await edited(life.world, state.name, schedule=Cron("0 0 1 1 *"))


async def obey(life: Life) -> None:
    runs = [(run.key, run.attempt) for run in life.runs.values()]
    await take_back(life.world.shard, life.holder.lease.worker_id, runs, life.world.now_ms)


async def pause_and_obey(life: Life) -> None:
    await pause(life)
    await obey(life)


async def delete_and_obey(life: Life) -> None:
    await delete(life)
    await obey(life)


async def retry(life: Life) -> None:
    keys = [RunKey(*run.key) for run in life.runs.values()]
    assert await retry_dead_letters(life.world.shard, TENANT, keys) == 1
    assert await retry_dead_letters(life.world.shard, TENANT, keys) == 0


Event = Callable[[Life], Awaitable[None]]

ENDED_OR_ASKED = {WAITING: CANCELLED}
TAKEN_BACK = dict.fromkeys(OPEN_STATES, WITHDRAWN)

LATE: list[tuple[Event, dict[RunState, RunState]]] = [
    (plan_again, {WITHDRAWN: RUNNING}),
    (claim, {WAITING: RUNNING}),
    (reap, {RUNNING: WAITING}),
    (reap_used_up, {RUNNING: FAILED}),
    (sweep, {}),
    (cancel, ENDED_OR_ASKED),
    (cancel_and_reap, ENDED_OR_ASKED | {RUNNING: CANCELLED}),
    (pause, {WAITING: WITHDRAWN}),
    (pause_and_obey, TAKEN_BACK),
    (delete, {WAITING: SKIPPED}),
    (delete_and_obey, {WAITING: SKIPPED, RUNNING: SKIPPED}),
    (edit, {}),
    (retry, {FAILED: WAITING}),
]
AHEAD: list[tuple[Event, dict[RunState, RunState]]] = [
    (claim, {}),
    (reap, {RUNNING: WAITING}),
    (reap_used_up, {RUNNING: WAITING}),
    (cancel, ENDED_OR_ASKED),
    (pause, TAKEN_BACK),
    (delete, TAKEN_BACK),
    (edit, TAKEN_BACK),
]


@pytest.mark.parametrize(("event", "changes"), LATE, ids=[event.__name__ for event, _ in LATE])
def test_p3_every_state_of_a_late_run_meets(shard_dsn: Dsn, event: Event, changes: dict[RunState, RunState]) -> None:
    async def body(life: Life) -> None:
        await event(life)
        assert await life.states() == unchanged_but(changes)

    lives(shard_dsn, LATE_S, body)


@pytest.mark.parametrize(("event", "changes"), AHEAD, ids=[event.__name__ for event, _ in AHEAD])
def test_p3_every_state_of_a_run_ahead_meets(shard_dsn: Dsn, event: Event, changes: dict[RunState, RunState]) -> None:
    async def body(life: Life) -> None:
        await event(life)
        assert await life.states() == unchanged_but(changes)

    lives(shard_dsn, AHEAD_S, body)


async def reaped_and_claimed(world: World, stale: Worker) -> None:
    await world.rows(f"UPDATE runs SET state = {WAITING:d}")
    columns = "partition_id, scheduled_at, job_id, due_at, reason, priority"
    waiting = f"partition_id, scheduled_at, job_id, {world.now_ms}, 2, priority"
    await world.rows(f"INSERT INTO deferred ({columns}) SELECT {waiting} FROM runs")
    winner = await owner_of_all(world)
    await winner.claim.run_once(world.now_ms)
    assert len(winner.runs()) == len(stale.runs())


async def claimed_again_by_itself(world: World, stale: Worker) -> None:
    await world.rows(f"UPDATE runs SET attempt = 2, worker_id = {stale.lease.worker_id}")


async def withdrawn(world: World, stale: Worker) -> None:
    await world.rows(f"UPDATE runs SET state = {WITHDRAWN:d}, attempt = 2, worker_id = NULL")


async def planned_again(world: World, stale: Worker) -> None:
    await world.rows(f"UPDATE runs SET state = {RUNNING:d}, attempt = 3, worker_id = {mint_worker_id()}")


TABLES = ("runs", "deferred", "attempts", "active", "dead_letters", "notices", "signals")


@pytest.mark.parametrize("won", [reaped_and_claimed, claimed_again_by_itself, withdrawn, planned_again])
def test_p3_nothing_that_a_stale_worker_writes_touches_what_the_winner_has(
    shard_dsn: Dsn, won: Callable[[World, Worker], Awaitable[None]]
) -> None:
    async def body(world: World) -> None:
        for name, number in product(WRITES, range(2)):
            await world.job(f"{name.replace(' ', '-')}-{number}", RunAt(world.second(1)))
        stale = await world.worker().join()
        await stale.plan_all()
        world.clock.advance(2_000)
        runs = stale.runs()
        await won(world, stale)
        before = await everything(world)
        for (write, _), run in zip(list(WRITES.values()) * 2, runs, strict=True):
            write(Life(world, stale, 0), run)
        await stale.settle.finish()
        await take_back(world.shard, stale.lease.worker_id, [(run.key, run.attempt) for run in runs], world.now_ms)
        assert await everything(world) == before
        assert len(stale.held) == 0

    run_world(shard_dsn, body)


async def everything(world: World) -> list[list[Row]]:
    return [await world.rows(f"SELECT * FROM {table}") for table in TABLES]
