"""Function runs that no worker will have any more: of disabled tenants, and older than their jobs let them become."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.model import NoticeKind, Priority, Reason, RetryPolicy, RunAt, RunState
from engine.rules.work import Deed
from engine.stages import unclaimed as stage
from engine.stages.unclaimed import AGED_MS, Unclaimed
from engine.stages.work import Stale
from engine.store.tenants import Tenants
from tests.stages.test_work import HOUR_MS, TARGET, Bench, begun, planned, told
from tests.support.world import TENANT, World, run_world


def unclaimed(world: World) -> Unclaimed:
    tenants = Tenants(world.shard, world.clock)
    return Unclaimed(world.shard, world.versions, tenants, told, world.clock, world.events)


async def made(world: World) -> None:
    """The tenant of the world, on the first shard."""
    await world.rows(f"INSERT INTO tenants (tenant_id, name, created_at) VALUES ({TENANT}, 'tenant', {world.now_ms})")


async def disable(world: World) -> None:
    await world.rows(f"UPDATE tenants SET disabled_at = {world.now_ms} WHERE tenant_id = {TENANT}")


async def ends(world: World) -> list[tuple[object, ...]]:
    return await world.rows("SELECT state, reason FROM runs")


def test_p2_a_disabled_tenants_function_runs_are_skipped_at_their_second(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await made(world)
        await planned(world)
        await disable(world)
        keeper = unclaimed(world)
        await keeper.run_once(world.now_ms)
        assert await ends(world) == [(RunState.WAITING, None)]
        world.clock.advance(5_000)
        await keeper.run_once(world.now_ms)
        assert await ends(world) == [(RunState.SKIPPED, Reason.TENANT_DISABLED)]
        assert await world.rows("SELECT * FROM deferred") == []
        assert await world.rows("SELECT kind FROM notices") == [(NoticeKind.SKIPPED,)]
        assert await Bench(world).claim() == []

    run_world(shard_dsn, body)


def test_what_a_disabled_tenants_worker_holds_is_skipped_once_it_comes_back(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await made(world)
        bench, claimed = await begun(world)
        await disable(world)
        await unclaimed(world).run_once(world.now_ms)
        assert await ends(world) == [(RunState.RUNNING, None)]
        await bench.end(claimed, Deed.RELEASE)
        await unclaimed(world).run_once(world.now_ms)
        assert await ends(world) == [(RunState.SKIPPED, Reason.TENANT_DISABLED)]
        assert isinstance(await bench.end(claimed, Deed.COMPLETE), Stale)

    run_world(shard_dsn, body)


@pytest.mark.parametrize("max_age_ms", [HOUR_MS, 24 * HOUR_MS])
def test_p2_a_run_that_nobody_claims_fails_at_its_max_age(shard_dsn: Dsn, max_age_ms: int) -> None:
    async def body(world: World) -> None:
        await made(world)
        await planned(world, retry=RetryPolicy(max_age_ms=max_age_ms))
        keeper = unclaimed(world)
        world.clock.advance(4_000 + max_age_ms)
        await keeper.run_once(world.now_ms)
        assert await ends(world) == [(RunState.WAITING, None)]
        world.clock.advance(2_000)
        await keeper.run_once(world.now_ms)
        assert await ends(world) == [(RunState.FAILED, Reason.MAX_AGE)]
        assert await world.rows("SELECT state, reason, tries FROM dead_letters") == [
            (RunState.FAILED, Reason.MAX_AGE, 0)
        ]
        assert await world.rows("SELECT kind FROM notices") == [(NoticeKind.FAILED,)]
        assert await world.rows("SELECT * FROM deferred") == []
        assert world.names_told().count("work.unclaimed") == 1

    run_world(shard_dsn, body)


def test_p3_a_worker_that_is_faster_than_the_bound_keeps_its_run(shard_dsn: Dsn) -> None:
    """The keeper has read that the run is too old, and finds it in a worker's hands."""

    async def body(world: World) -> None:
        await made(world)
        await planned(world, retry=RetryPolicy(max_age_ms=HOUR_MS))
        bench, keeper = Bench(world), unclaimed(world)
        world.clock.advance(6_000 + HOUR_MS)
        rows = await keeper._aged((await keeper._look())[0].lane, Priority.NORMAL, stage._START, world.now_ms)
        (claimed,) = await bench.claim()
        await keeper._end_aged(rows, world.now_ms)
        assert await ends(world) == [(RunState.RUNNING, None)]
        assert not isinstance(await bench.end(claimed, Deed.COMPLETE), Stale)

    run_world(shard_dsn, body)


def test_a_long_backlog_is_walked_through_piece_by_piece(shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind older runs that may wait, one that may not is found; many are due at the same moment."""

    async def body(world: World) -> None:
        monkeypatch.setattr(stage, "RUNS_PER_WALK", 3)
        await made(world)
        worker = await world.worker().join()
        at_ms = world.second(1)
        for number in range(10):
            policy = RetryPolicy(max_age_ms=HOUR_MS if number == 7 else 24 * HOUR_MS)
            await world.job(f"job-{number}", RunAt(at_ms), target=TARGET, retry=policy)
        await worker.plan_all()
        world.clock.advance(2 * HOUR_MS + AGED_MS)
        keeper = unclaimed(world)
        for _ in range(4):
            await keeper.run_once(world.now_ms)
        assert sorted(await ends(world)) == [(RunState.WAITING, None)] * 9 + [(RunState.FAILED, Reason.MAX_AGE)]

    run_world(shard_dsn, body)
