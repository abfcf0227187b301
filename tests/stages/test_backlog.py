"""How far planning has come, and what waits."""

from engine.model import RunAt, RunKey
from engine.stages.backlog import Backlog
from tests.support.world import run_world


def seen(world):
    return next(fields for name, fields in reversed(world.told) if name == "backlog.seen")


def test_an_empty_shard_has_no_backlog(shard_dsn):
    async def body(world):
        await Backlog(world.shard, world.partitions, world.events).run_once(world.now_ms)
        assert seen(world) == {"shard": 0, "age_ms": 0, "ahead_ms": None}

    run_world(shard_dsn, body)


def test_it_tells_how_far_away_the_first_unplanned_time_is(shard_dsn):
    async def body(world):
        for number in range(5):
            await world.job(f"job-{number}", RunAt(world.second(60 + number)))
        await Backlog(world.shard, world.partitions, world.events).run_once(world.now_ms)
        assert seen(world)["age_ms"] == 0
        assert 50_000 < seen(world)["ahead_ms"] <= 60_000

    run_world(shard_dsn, body)


def test_what_is_due_and_not_planned_is_backlog(shard_dsn):
    async def body(world):
        await world.job("late", RunAt(world.second(-30)))
        await world.job("future", RunAt(world.second(60)))
        await Backlog(world.shard, world.partitions, world.events).run_once(world.now_ms)
        assert 30_000 <= seen(world)["age_ms"] < 40_000
        assert seen(world)["ahead_ms"] == 0

    run_world(shard_dsn, body)


def test_what_waits_in_deferred_is_backlog(shard_dsn):
    async def body(world):
        key = RunKey(3, world.second(-20), 1)
        async with world.shard.transaction() as connection:
            await connection.execute_rows("insert_deferred", [(*key, world.second(-20), 1, 2, 7)], bytes_max=1 << 20)
        await Backlog(world.shard, world.partitions, world.events).run_once(world.now_ms)
        assert 20_000 <= seen(world)["age_ms"] < 30_000

    run_world(shard_dsn, body)
