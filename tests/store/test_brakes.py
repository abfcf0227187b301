"""Brakes on a real shard: pulled once, released with who, seen by every process that asks."""

from __future__ import annotations

from engine.config import Dsn
from engine.model import Cron, JobState
from engine.rules.brakes import UNKNOWN, BrakeKind, InForce
from engine.rules.target_text import Origin
from engine.store.brakes import Brakes, brakes_used, pause_tenant, pull, release, resume_tenant
from engine.store.changes import Windows, pause_job, resume_job
from engine.store.jobs import find_jobs
from engine.store.tenants import create_tenant
from tests.support.world import TENANT, World, run_world

EVERY_MINUTE = Cron("* * * * *")


def test_what_is_in_force_is_seen_with_who_pulled_and_released_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        seen = Brakes(world.shard)
        assert seen.in_force == UNKNOWN
        await seen.reread(world.now_ms)
        assert not seen.in_force.any

        everything = await pull(world.shard, BrakeKind.ALL, "", "ada@ops", "restored")
        origin = await pull(world.shard, BrakeKind.ORIGIN, "https://example.com:443", "ada@ops", "")
        tenant = await pull(world.shard, BrakeKind.TENANT, "seven", "bob@ops", "", TENANT)
        assert await pull(world.shard, BrakeKind.ALL, "", "eve@ops", "again") == everything
        assert await seen.reread(world.now_ms) == ([everything, origin, tenant], [])
        assert seen.in_force == InForce(True, frozenset({TENANT}), frozenset({Origin("https", "example.com", 443)}))
        assert await seen.reread(world.now_ms) == ([], [])

        assert await release(world.shard, BrakeKind.ALL, "", "bob@ops")
        assert not await release(world.shard, BrakeKind.ALL, "", "bob@ops")
        began, (ended,) = await seen.reread(world.now_ms)
        assert (began, ended.brake_id, ended.released_by) == ([], everything.brake_id, "bob@ops")
        assert seen.in_force.stops(TENANT)
        assert not seen.in_force.stops(TENANT + 1)
        assert [brake.brake_id for brake in await brakes_used(world.shard, 2)] == [tenant.brake_id, origin.brake_id]

    run_world(shard_dsn, body)


def test_a_brake_that_was_released_before_is_news_to_nobody(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await pull(world.shard, BrakeKind.ALL, "", "ada@ops", "")
        await release(world.shard, BrakeKind.ALL, "", "ada@ops")
        assert await Brakes(world.shard).reread(world.now_ms) == ([], [])

    run_world(shard_dsn, body)


def test_p8_a_tenants_jobs_are_paused_with_it_and_those_it_paused_itself_stay_so(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await create_tenant(world.shard, "seven")
        await world.rows(f"UPDATE tenants SET tenant_id = {TENANT}")
        names = [f"job-{number}" for number in range(5)]
        for name in names:
            await world.job(name, EVERY_MINUTE)
        own = (await find_jobs(world.shard, [(TENANT, names[0])]))[TENANT, names[0]]
        await pause_job(world.shard, own, "mine", Windows())

        brake, paused = await pause_tenant([world.shard], "seven", "ada@ops", "abuse", Windows())
        assert (brake.tenant_id, paused) == (TENANT, 4)
        jobs = await find_jobs(world.shard, [(TENANT, name) for name in names])
        assert {job.state for job in jobs.values()} == {JobState.PAUSED}
        assert [jobs[TENANT, name].note for name in names[:2]] == ["mine", "paused by the operator: abuse"]

        assert (await pause_tenant([world.shard], "seven", "eve@ops", "", Windows()))[1] == 0
        early = await resume_job(world.shard, jobs[TENANT, names[4]], None, Windows())
        assert early is not None
        assert await resume_tenant([world.shard], "seven", "ada@ops", Windows()) == (True, 3)
        jobs = await find_jobs(world.shard, [(TENANT, name) for name in names])
        states = [jobs[TENANT, name].state for name in names]
        assert states == [JobState.PAUSED] + 4 * [JobState.ACTIVE]
        assert await resume_tenant([world.shard], "seven", "ada@ops", Windows()) == (False, 0)

    run_world(shard_dsn, body)
