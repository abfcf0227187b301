"""Settling on a real shard: one outcome, fenced; what fails is tried again or buried, and a stale result is nothing."""

from __future__ import annotations

from engine.config import Dsn
from engine.model import OutcomeKind, Reason, RetryPolicy, RunAt, RunState
from engine.stages.held import HeldRun
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
