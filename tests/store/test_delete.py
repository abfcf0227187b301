"""Delete of a job, against runs that are due, claimed, between retries and not planned yet."""

from __future__ import annotations

from engine.config import Dsn
from engine.model import (
    Cron,
    Definition,
    JobState,
    Reason,
    RunAt,
    RunState,
    VersionEvent,
)
from engine.store.changes import (
    start_run,
    take_back,
)
from engine.store.jobs import NewJob, create_jobs, find_jobs
from tests.support.changes import (
    EVERY_10_S,
    WINDOWS,
    between_retries,
    deferred,
    deleted,
    edited,
    ended,
    in_flight,
    job_named,
    obeyed,
    planned_far,
    runs,
)
from tests.support.world import PARTITIONS, TENANT, World, key_of, run_world


def test_delete_skips_what_is_due_and_takes_back_the_future(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await between_retries(world, "dying")
        now = await start_run(world.shard, await job_named(world, "dying"), WINDOWS)
        assert now is not None
        await deleted(world, "dying")
        rows = await world.rows("SELECT state, reason FROM runs")
        assert [tuple(row) for row in rows] == [(RunState.SKIPPED, Reason.DELETED)] * 2
        assert await deferred(world) == []
        world.clock.wall_ms += 60_000
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        assert await find_jobs(world.shard, [(TENANT, "dying")]) == {}

    run_world(shard_dsn, body)


def test_delete_of_a_job_with_claimed_runs_withdraws_them(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, job_id = await planned_far(world)
        changed = await deleted(world, "far")
        after = await runs(world)
        asked = [run for run in after if run[1] == RunState.RUNNING]
        assert {run[1] for run in after} <= {RunState.WITHDRAWN, RunState.RUNNING}
        held = [(run.key, run.attempt) for run in worker.runs() if run.key.scheduled_at_ms in {run[0] for run in asked}]
        await take_back(world.shard, worker.lease.worker_id, held, world.now_ms + 2_000)
        assert RunState.RUNNING not in {run[1] for run in await runs(world)}
        assert changed.job.state == JobState.DELETED
        versions = await world.rows(f"SELECT event FROM job_versions WHERE job_id = {job_id} ORDER BY version")
        assert [row[0] for row in versions] == [VersionEvent.CREATED, VersionEvent.DELETED]

    run_world(shard_dsn, body)


def test_p7_a_delete_reaches_runs_that_an_edit_had_let_stand_beyond_a_single_time_of_the_past(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, _ = await planned_far(world, "far", Cron("* * * * * *"))
        await edited(world, "far", schedule=RunAt(world.second(-5)))
        await worker.plan_all()
        await deleted(world, "far")
        await obeyed(world, worker)
        assert RunState.RUNNING not in [run[1] for run in await runs(world)]

    run_world(shard_dsn, body)


def test_delete_records_times_that_nobody_has_planned_yet(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        since_ms = world.now_ms // 10_000 * 10_000 - 20_000
        await world.job("behind", EVERY_10_S, next_run_at_ms=since_ms)
        await deleted(world, "behind")
        records = await world.rows("SELECT from_at, skipped, reason FROM skips")
        assert [tuple(row) for row in records] in ([(since_ms, 3, Reason.DELETED)], [(since_ms, 4, Reason.DELETED)])

    run_world(shard_dsn, body)


def test_a_retry_that_fails_after_the_delete_is_skipped_instead_of_claimed(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await in_flight(world, "flying")
        await deleted(world, "flying")
        await ended(world, worker, 500)
        world.clock.wall_ms += 60_000
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        rows = await world.rows("SELECT state, reason FROM runs")
        assert [tuple(row) for row in rows] == [(RunState.SKIPPED, Reason.DELETED)]
        assert await deferred(world) == []

    run_world(shard_dsn, body)


def test_a_name_created_again_is_another_job(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        job_id = await world.job("again", EVERY_10_S)
        definition = Definition.decode((await job_named(world, "again")).definition)
        await deleted(world, "again")
        key = key_of(job_id, "again", 0)
        created = await create_jobs(world.shard, [NewJob(TENANT, "again", key.partition_id, definition, paused=False)])
        assert created[0].job_id != job_id
        assert (await job_named(world, "again")).version == 1
        assert key.partition_id < PARTITIONS

    run_world(shard_dsn, body)
