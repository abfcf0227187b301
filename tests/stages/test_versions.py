"""Versions: a cache that is full forgets, and never makes a job that can be evaluated look as if it could not."""

from __future__ import annotations

from engine.config import Dsn
from engine.model import JobState, RunAt
from engine.outbound.target import Guard
from engine.stages.versions import CallPlan, Versions
from tests.support.world import World, run_world

NAMES = ["a", "b", "c"]


async def keys_of(world: World) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in await world.rows("SELECT partition_id, job_id, version FROM jobs ORDER BY name")]


def test_what_a_full_cache_forgets_while_it_reads_more_is_answered_all_the_same(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        for name in NAMES:
            await world.job(name, RunAt(world.second(5)))
        keys = await keys_of(world)
        versions = Versions(Guard(["127.0.0.0/8"], []), versions_max=1)
        async with world.shard.connection() as connection:
            await versions.load(connection, keys[:1], 1 << 24)
            calls = await versions.load(connection, keys, 1 << 24)
        assert list(calls) == sorted(keys)
        assert all(isinstance(call, CallPlan) for call in calls.values())

    run_world(shard_dsn, body)


def test_p2_more_jobs_than_versions_fit_the_cache_are_planned_and_none_is_set_aside(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        world.versions = Versions(Guard(["127.0.0.0/8"], []), versions_max=1)
        for name in NAMES:
            await world.job(name, RunAt(world.second(5)))
        async with world.shard.connection() as connection:
            await world.versions.load(connection, (await keys_of(world))[:1], 1 << 24)
        worker = await world.worker().join()
        await worker.plan_all()
        assert await world.rows("SELECT COUNT(*) FROM runs") == [(len(NAMES),)]
        assert await world.rows(f"SELECT COUNT(*) FROM jobs WHERE state = {int(JobState.INVALID)}") == [(0,)]

    run_world(shard_dsn, body)
