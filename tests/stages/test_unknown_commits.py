"""A connection that breaks at COMMIT: whether the server got it or not, nothing is lost, and nothing is done twice."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.errors import CommitUnknown, Conflict, StoreUnavailable
from engine.model import RetryPolicy, RunAt, RunState
from engine.stages.held import HeldRun
from tests.support.proxy import CLAIM, PLAN, SETTLE, Proxy, proxied
from tests.support.world import Worker, World, run_world

either_way = pytest.mark.parametrize("before", [True, False], ids=["that the server never got", "that the server got"])


def run_proxied(dsn: Dsn, body: object) -> None:
    """The same as ``run_world``, through a proxy that the body is given too."""
    with proxied(dsn) as (proxy, through):
        run_world(through, lambda world: body(world, proxy))  # type: ignore[operator]


@either_way
def test_p1_a_plan_is_looked_up_and_every_time_has_one_run_that_is_held_once(shard_dsn: Dsn, before: bool) -> None:
    async def body(world: World, proxy: Proxy) -> None:
        at_ms = world.second(10)
        for number in range(5):
            await world.job(f"job-{number}", RunAt(at_ms))
        worker = await world.worker().join()
        cut = proxy.cut(PLAN, before=before)
        with pytest.raises(CommitUnknown):
            await worker.plan_all()
        await worker.plan_all()
        assert cut.done == 1
        assert await world.states() == [(at_ms, RunState.RUNNING)] * 5
        assert len(worker.runs()) == 5

    run_proxied(shard_dsn, body)


@either_way
def test_p3_a_claim_is_looked_up_and_its_run_is_held_once(shard_dsn: Dsn, before: bool) -> None:
    async def body(world: World, proxy: Proxy) -> None:
        worker, run = await planned_one(world)
        worker.settle.given_back(run)
        await worker.settle.run_once(world.now_ms)
        world.clock.advance(2_000)
        proxy.cut(CLAIM, before=before)
        with pytest.raises(CommitUnknown):
            await worker.claim.run_once(world.now_ms)
        await worker.claim.run_once(world.now_ms)
        assert [held.attempt for held in worker.runs()] == [2]
        assert await world.rows("SELECT state, attempt FROM runs") == [(RunState.RUNNING, 2)]

    run_proxied(shard_dsn, body)


@either_way
@pytest.mark.parametrize(
    ("status", "tries_max", "state"),
    [(200, 5, RunState.SUCCEEDED), (500, 5, RunState.WAITING), (500, 1, RunState.FAILED)],
)
def test_p3_an_outcome_is_written_once(
    shard_dsn: Dsn, before: bool, status: int, tries_max: int, state: RunState
) -> None:
    async def body(world: World, proxy: Proxy) -> None:
        worker, run = await planned_one(world, retry=RetryPolicy(max_attempts=tries_max))
        proxy.cut(SETTLE, before=before)
        with pytest.raises(CommitUnknown):
            await worker.end(run, status)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, attempt, tries FROM runs") == [(state, 1, 1)]
        assert await world.rows("SELECT COUNT(*) FROM attempts") == [(int(status != 200),)]
        assert await world.rows("SELECT COUNT(*) FROM dead_letters") == [(int(state == RunState.FAILED),)]
        assert len(worker.settle) == len(worker.held) == 0

    run_proxied(shard_dsn, body)


def test_p3_an_outcome_whose_run_another_worker_has_claimed_meanwhile_changes_nothing(shard_dsn: Dsn) -> None:
    async def body(world: World, proxy: Proxy) -> None:
        worker, run = await planned_one(world)
        proxy.cut(SETTLE, before=False)
        with pytest.raises(CommitUnknown):
            await worker.end(run, 500)
        world.clock.advance(10_000)
        other = await world.worker().join()
        await other.claim.run_once(world.now_ms)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, attempt, tries FROM runs") == [(RunState.RUNNING, 2, 1)]
        await other.end(other.runs()[0])
        assert await world.rows("SELECT state, attempt, tries FROM runs") == [(RunState.SUCCEEDED, 2, 2)]

    run_proxied(shard_dsn, body)


def test_p2_a_commit_that_is_still_on_its_way_is_waited_for_before_its_runs_are_given_up(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run = await planned_one(world)
        worker.held.remove(run)
        await world.rows("DELETE FROM runs")
        async with world.shard.transaction() as on_its_way:
            values = (*run.key, run.tenant_id, 1, int(RunState.RUNNING), 2, 1, 1, run.worker_id, run.lease_until_ms)
            await on_its_way.run(
                "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority,"
                f" trigger_kind, attempt, worker_id, lease_until) VALUES {values}".encode()
            )
            worker.plan._unknown = [run]
            with pytest.raises(Conflict):
                await worker.plan.run_once(world.now_ms)
            assert worker.runs() == []
        await worker.plan.run_once(world.now_ms)
        assert worker.runs() == [run]

    run_world(shard_dsn, body)


def test_p10_a_shard_that_stays_away_is_asked_again_until_it_says_what_stands(shard_dsn: Dsn) -> None:
    async def body(world: World, proxy: Proxy) -> None:
        at_ms = world.second(10)
        await world.job("once", RunAt(at_ms))
        worker = await world.worker().join()
        proxy.cut(PLAN, before=False)
        with pytest.raises(CommitUnknown):
            await worker.plan_all()
        proxy.refuse()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await worker.plan_all()
        proxy.heal()
        await worker.plan_all()
        assert [held.due_ms for held in worker.runs()] == [at_ms]

    run_proxied(shard_dsn, body)


async def planned_one(world: World, **settings: object) -> tuple[Worker, HeldRun]:
    await world.job("once", RunAt(world.second(1)), **settings)
    worker = await world.worker().join()
    await worker.plan_all()
    return worker, worker.runs()[0]
