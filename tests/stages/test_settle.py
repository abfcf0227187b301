"""Settling on a real shard: one outcome, fenced; what fails is tried again or buried, and a stale result is nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest
from asyncmy.errors import MySQLError

from engine.config import Dsn
from engine.errors import CommitUnknown, Conflict, StoreUnavailable
from engine.model import OutcomeKind, Reason, RetryPolicy, RunAt, RunState
from engine.outbound.exchange import Outcome
from engine.stages.held import HeldRun
from engine.stages.settle import HOLD_BACK_MS
from tests.support.world import Worker, World, run_world


async def one_claimed(world: World, **settings: object) -> tuple[Worker, HeldRun]:
    await world.job("once", RunAt(world.second(1)), **settings)
    worker = await world.worker().join()
    await worker.plan_all()
    return worker, worker.runs()[0]


def test_p2_a_2xx_answer_ends_the_run_succeeded_and_lets_go_of_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world)
        await worker.end(run, 204)
        rows = await world.rows("SELECT state, tries, outcome, status_code, finished_at IS NOT NULL FROM runs")
        assert rows == [(RunState.SUCCEEDED, 1, OutcomeKind.ANSWERED, 204, 1)]
        assert len(worker.held) == 0
        assert await world.rows("SELECT * FROM attempts") == []

    run_world(shard_dsn, body)


def test_a_failed_try_waits_in_deferred_for_its_backoff_and_leaves_an_attempt(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world)
        await worker.end(run, 503)
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.WAITING, 1)]
        due_at_ms, reason = (await world.rows("SELECT due_at, reason FROM deferred"))[0]
        assert (due_at_ms, reason) == (world.now_ms + 5_000, Reason.RETRY)  # half of a backoff of 10 s
        assert await world.rows("SELECT attempt, status_code, answer FROM attempts") == [(1, 503, b"answer")]

    run_world(shard_dsn, body)


def test_p3_a_retry_is_claimed_with_the_next_attempt_and_its_success_clears_deferred(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world)
        await worker.end(run, 500)
        world.clock.advance(5_000)
        await worker.claim.run_once(world.now_ms)
        (again,) = worker.runs()
        assert (again.attempt, again.tries, again.key) == (2, 1, run.key)
        await worker.end(again)
        assert await world.rows("SELECT state, attempt, tries FROM runs") == [(RunState.SUCCEEDED, 2, 2)]
        assert await world.rows("SELECT * FROM deferred") == []

    run_world(shard_dsn, body)


def test_p2_the_last_failed_try_buries_the_run_and_tells_its_tenant(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world, retry=RetryPolicy(max_attempts=1))
        await worker.end(run, kind=OutcomeKind.TIMEOUT)
        assert await world.states() == [(run.key.scheduled_at_ms, RunState.FAILED)]
        letters = await world.rows("SELECT name, state, attempt, tries, outcome FROM dead_letters")
        assert letters == [("once", RunState.FAILED, 1, 1, OutcomeKind.TIMEOUT)]
        assert await world.rows("SELECT kind, about_at FROM notices") == [(1, run.key.scheduled_at_ms)]
        assert await world.rows("SELECT * FROM deferred") == []

    run_world(shard_dsn, body)


def test_p3_a_late_result_of_a_worker_that_lost_the_run_changes_nothing(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        stale, run = await one_claimed(world)
        await world.rows(f"UPDATE workers SET lease_until = 0 WHERE worker_id = {stale.lease.worker_id}")
        world.clock.advance(2_000)
        while await world.reap().run_once(world.now_ms):
            pass
        winner = await world.worker().join()
        await winner.claim.run_once(world.now_ms)
        (again,) = winner.runs()
        before = await world.rows("SELECT * FROM runs")
        deferred = await world.rows("SELECT * FROM deferred")
        await stale.end(run, 500)
        assert await world.rows("SELECT * FROM runs") == before
        assert await world.rows("SELECT * FROM deferred") == deferred
        await winner.end(again)
        assert await world.rows("SELECT state, attempt FROM runs") == [(RunState.SUCCEEDED, 2)]

    run_world(shard_dsn, body)


def test_a_run_given_back_costs_no_try_and_is_due_at_its_own_moment(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world, retry=RetryPolicy(max_attempts=1))
        worker.settle.given_back(run)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, tries, outcome FROM runs") == [(RunState.WAITING, 0, None)]
        assert await world.rows("SELECT due_at FROM deferred") == [(run.key.scheduled_at_ms,)]
        assert await world.rows("SELECT * FROM attempts") == []

    run_world(shard_dsn, body)


def test_p3_three_rolling_restarts_before_the_second_cost_no_try(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world, retry=RetryPolicy(max_attempts=1))
        for attempt in (2, 3, 4):
            worker.settle.given_back(run)
            await worker.settle.run_once(world.now_ms)
            worker = await world.worker().join()
            worker.lease.partitions = world.partitions
            await worker.claim.run_once(world.now_ms)
            (run,) = worker.runs()
            assert (run.attempt, run.tries) == (attempt, 0)
        await worker.end(run)
        assert await world.rows("SELECT state, attempt, tries FROM runs") == [(RunState.SUCCEEDED, 4, 1)]

    run_world(shard_dsn, body)


@pytest.mark.parametrize(
    "error", [Conflict("lost"), StoreUnavailable("away"), CommitUnknown("cut"), ValueError("ours")]
)
def test_p2_an_outcome_that_could_not_be_written_is_written_later_whatever_went_wrong(
    shard_dsn: Dsn, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world)
        with monkeypatch.context() as broken, pytest.raises(type(error)):
            broken.setattr(worker.settle, "_write", raising(error))
            await worker.end(run)
        assert len(worker.settle) == 1
        await worker.settle.run_once(world.now_ms)
        assert await world.states() == [(run.key.scheduled_at_ms, RunState.SUCCEEDED)]
        assert len(worker.held) == 0

    run_world(shard_dsn, body)


def raising(error: Exception) -> Callable[..., Awaitable[None]]:
    async def write(*_: object) -> None:
        raise error

    return write


def test_p2_one_outcome_that_can_never_be_written_holds_up_no_other(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        for number in range(8):
            await world.job(f"job-{number}", RunAt(world.second(1)))
        worker = await world.worker().join()
        await worker.plan_all()
        runs = worker.runs()
        for run in runs:
            status = 1 << 40 if run is runs[3] else 200  # more than the column holds
            outcome = Outcome(OutcomeKind.ANSWERED, status, None, b"", world.now_ms, world.now_ms, True, "", "")
            worker.settle.settled(run, outcome)
        for _ in range(24):
            with contextlib.suppress(MySQLError):
                await worker.settle.run_once(world.now_ms)
        assert await world.rows(f"SELECT COUNT(*) FROM runs WHERE state = {RunState.SUCCEEDED:d}") == [(7,)]
        assert [settlement.run for settlement in worker.settle._waiting] == [runs[3]]

    run_world(shard_dsn, body)


def test_a_drain_writes_everything_that_waits(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await one_claimed(world)
        worker.settle.given_back(run)
        await worker.settle.finish()
        assert await world.states() == [(run.key.scheduled_at_ms, RunState.WAITING)]

    run_world(shard_dsn, body)


def test_while_calls_are_behind_each_outcome_waits_but_not_for_long(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.stages.settle.BATCH_ROWS_MAX", 1)

    async def body(world: World) -> None:
        for number in range(3):
            await world.job(f"once-{number}", RunAt(world.second(1)))
        worker = await world.worker().join()
        await worker.plan_all()
        worker.settle._rows_max = 1
        worker.busy = True
        for run in worker.runs():
            await worker.end(run)
            world.clock.advance(1_000)
        assert len(worker.settle) == 3
        world.clock.advance(HOLD_BACK_MS - 2_000)
        while await worker.settle.run_once(world.now_ms):
            pass
        assert len(worker.settle) == 1  # two are old enough, and are written one after the other
        worker.busy = False
        await worker.settle.run_once(world.now_ms)
        assert {state for _, state in await world.states()} == {RunState.SUCCEEDED}

    run_world(shard_dsn, body)
