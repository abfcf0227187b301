"""Planning and claiming under pressure on a real shard: a tenant with tens of thousands due hides nobody else's few."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.config import Dsn
from engine.model import Definition, JobState, Priority, RunAt, RunState, VersionEvent
from tests.support.world import PARTITIONS, TARGET, TENANT, Worker, World, run_world

LOUD, QUIET, FEW = TENANT, 8, 10
LOUD_JOBS = 50_000
# Of 1,000 rows each: the first shows who is loud, and the next have the others in them.
BATCHES = 3


async def store(world: World, tenant_id: int, first_id: int, jobs: int, due_ms: int, per_ms: int = 0) -> None:
    """So many jobs in one statement, evenly over the partitions; ``per_ms`` spreads their times."""
    definition = Definition(schedule=RunAt(due_ms), target=TARGET).encode().hex()
    numbers = (
        f"(SELECT a.n + 1000 * b.n AS n FROM {_thousand('a')}, {_thousand('b')} WHERE a.n + 1000 * b.n < {jobs}) AS n"
    )
    await world.rows(
        "INSERT INTO jobs (partition_id, job_id, tenant_id, name, alive, state, version, priority, overlap,"
        " next_run_at, created_at, updated_at)"
        f" SELECT n % {PARTITIONS}, {first_id} + n, {tenant_id}, CONCAT('job-', {first_id} + n), 1,"
        f" {JobState.ACTIVE:d}, 1, {Priority.NORMAL:d}, 0, {due_ms} + n * {per_ms}, {world.now_ms}, {world.now_ms}"
        f" FROM {numbers}"
    )
    await world.rows(
        "INSERT INTO job_versions SELECT partition_id, job_id, 1,"
        f" {VersionEvent.CREATED:d}, {JobState.ACTIVE:d}, {world.now_ms}, next_run_at, 'test', X'{definition}', NULL"
        f" FROM jobs WHERE tenant_id = {tenant_id} AND job_id >= {first_id}"
    )


def _thousand(name: str) -> str:
    return f"(WITH RECURSIVE t (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 999) SELECT n FROM t) AS {name}"


async def let_wait(world: World) -> None:
    """All that is due waits in deferred, as after an outage of an endpoint."""
    await world.rows(
        "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
        " attempt)"
        f" SELECT partition_id, next_run_at, job_id, tenant_id, 1, {RunState.WAITING:d}, priority, 1, 1 FROM jobs"
    )
    await world.rows(
        "INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority, tenant_id)"
        " SELECT partition_id, scheduled_at, job_id, scheduled_at, 1, priority, tenant_id FROM runs"
    )
    await world.rows("UPDATE jobs SET next_run_at = NULL")


def held(worker: Worker) -> Counter[int]:
    return Counter(run.tenant_id for run in worker.runs())


async def pressed(world: World, due_ms: int, per_ms: int) -> None:
    """A loud tenant's 50,000 from then on, a quiet one's ten in the same second, and ten a second later."""
    await store(world, LOUD, 1, LOUD_JOBS, due_ms, per_ms)
    await store(world, QUIET, 1_000_001, FEW, due_ms)
    await store(world, QUIET, 1_000_101, FEW, due_ms + 1_000)
    await world.rows("ANALYZE TABLE jobs")


@pytest.mark.parametrize(("ahead_s", "per_ms"), [(1, 0), (-200, 2)], ids=["in one second", "late"])
def test_p6_the_few_due_jobs_of_a_quiet_tenant_are_planned_in_the_first_batches(
    shard_dsn: Dsn, ahead_s: int, per_ms: int
) -> None:
    async def body(world: World) -> None:
        await pressed(world, world.second(ahead_s), per_ms)
        worker = await world.worker().join()
        for _ in range(BATCHES):
            await worker.plan.run_once(world.now_ms)
        planned = Counter(row[0] for row in await world.rows("SELECT tenant_id FROM runs"))
        assert planned[QUIET] == 2 * FEW
        assert planned[LOUD] > 2_000

    run_world(shard_dsn, body)


@pytest.mark.parametrize(("ahead_s", "per_ms"), [(1, 0), (-200, 2)], ids=["in one second", "late"])
def test_p6_the_few_waiting_runs_of_a_quiet_tenant_are_claimed_in_the_first_batches(
    shard_dsn: Dsn, ahead_s: int, per_ms: int
) -> None:
    async def body(world: World) -> None:
        await pressed(world, world.second(ahead_s), per_ms)
        await let_wait(world)
        worker = await world.worker().join()
        for _ in range(BATCHES):
            await worker.claim.run_once(world.now_ms)
        assert held(worker)[QUIET] == 2 * FEW
        assert held(worker)[LOUD] > 2_000

    run_world(shard_dsn, body)


def test_p6_a_loud_tenants_backlog_is_planned_whole_and_every_time_once(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await store(world, LOUD, 1, 3_000, world.second(1))
        await store(world, QUIET, 1_000_001, 1_500, world.second(1))
        worker = await world.worker().join()
        await worker.plan_all()
        assert held(worker) == {LOUD: 3_000, QUIET: 1_500}
        assert await world.rows("SELECT COUNT(*) FROM jobs WHERE next_run_at IS NOT NULL") == [(0,)]

    run_world(shard_dsn, body)


def test_p6_what_is_planned_ahead_leaves_places_for_what_is_due(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await store(world, LOUD, 1, 12_000, world.second(2))
        worker = await world.worker().join()
        await worker.plan_all()
        assert held(worker)[LOUD] < 10_000
        assert worker.held.room() > 1_000

    run_world(shard_dsn, body)


def test_p5_what_is_planned_late_below_the_mark_is_claimed_and_fired_as_late(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await store(world, LOUD, 1, 1, world.second(-90))
        await world.rows(f"UPDATE marks SET mark_at = {world.now_ms - 60_000}")
        worker = await world.worker().join()
        await worker.plan_all()
        assert await world.states() == [(world.second(-90), RunState.WAITING)]
        await worker.claim.run_once(world.now_ms)
        assert [run.due_ms for run in worker.runs()] == [world.second(-90)]

    run_world(shard_dsn, body)
