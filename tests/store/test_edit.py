"""An edit of a job, against runs that are planned, claimed and standing within the freeze window."""

from __future__ import annotations

from dataclasses import replace

from engine.config import Dsn
from engine.model import (
    Cron,
    Definition,
    JobState,
    Reason,
    RunAt,
    RunState,
    SignalKind,
)
from engine.store.changes import (
    edit_job,
)
from tests.support.changes import (
    EVERY_10_S,
    FREEZE_MS,
    WINDOWS,
    answered,
    deferred,
    edited,
    job_named,
    paused,
    planned_far,
    resumed,
    runs,
)
from tests.support.world import World, run_world


def test_p7_an_edit_reaches_every_run_beyond_the_freeze_window_and_none_within(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, _ = await planned_far(world)
        before = await runs(world)
        earliest_ms = await world.shard.now_ms() + FREEZE_MS
        changed = await edited(world, "far", timeout_ms=5_000)
        latest_ms = await world.shard.now_ms() + FREEZE_MS
        withdrawn = [run for run in await runs(world) if run[1] == RunState.WITHDRAWN]
        stood = [run for run in await runs(world) if run[1] == RunState.RUNNING]
        assert withdrawn
        assert stood
        assert all(run[0] <= latest_ms for run in stood)
        assert all(run[0] > earliest_ms for run in withdrawn)
        assert changed.effective_from_ms == changed.job.next_run_at_ms == withdrawn[0][0]
        assert {run[3] for run in withdrawn} == {before[0][3] + 1}
        signals = await world.rows("SELECT worker_id, kind, scheduled_at, attempt FROM signals ORDER BY scheduled_at")
        told = [(worker.lease.worker_id, SignalKind.WITHDRAWN, run[0], before[0][3]) for run in withdrawn]
        assert [tuple(row) for row in signals] == told

    run_world(shard_dsn, body)


def test_p1_runs_withdrawn_by_an_edit_are_planned_again_with_the_new_version_once(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old, _ = await planned_far(world)
        times = [run[0] for run in await runs(world)]
        changed = await edited(world, "far", timeout_ms=5_000)
        stale = {run.key.scheduled_at_ms: run for run in old.runs()}
        other = await world.worker().join()
        other.lease.partitions = old.lease.partitions
        world.clock.wall_ms += 60_000
        await other.plan_all()
        again = await runs(world)
        assert [run[0] for run in again][: len(times)] == times
        for at_ms, state, version, attempt, worker_id in again:
            beyond = at_ms >= (changed.effective_from_ms or 0)
            assert (state, version) == (RunState.RUNNING, 2 if beyond else 1)
            assert worker_id == (other if beyond else old).lease.worker_id
            if beyond and at_ms in stale:
                assert attempt == stale[at_ms].attempt + 2
        old.settle.settled(stale[times[-1]], answered(world, 200))
        await old.settle.run_once(world.now_ms)
        assert (await runs(world)) == again, "a late result of a withdrawn attempt changes nothing"

    run_world(shard_dsn, body)


def test_p7_another_schedule_begins_after_the_last_run_that_stands(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await planned_far(world)
        changed = await edited(world, "far", schedule=Cron("5/10 * * * * *"))
        after = await runs(world)
        standing = [run[0] for run in after if run[1] == RunState.RUNNING]
        withdrawn = [run[0] for run in after if run[1] == RunState.WITHDRAWN]
        assert changed.effective_from_ms == standing[-1] + 5_000
        assert withdrawn[0] == standing[-1] + 10_000

    run_world(shard_dsn, body)


def test_p7_the_old_schedule_is_planned_to_the_end_of_the_freeze_window_by_the_edit_itself(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("unplanned", EVERY_10_S)
        changed = await edited(world, "unplanned", schedule=Cron("0 0 0 1 1 *"))
        planned = await runs(world)
        assert len(planned) == 3
        assert {run[1:4] for run in planned} == {(RunState.WAITING, 1, 0)}
        assert await deferred(world) == [(run[0], run[0], Reason.SCHEDULED) for run in planned]
        assert planned[-1][0] <= await world.shard.now_ms() + FREEZE_MS
        worker = await world.worker().join()
        world.clock.wall_ms = planned[-1][0]
        await worker.claim.run_once(world.now_ms)
        assert [run.version for run in worker.runs()] == [1, 1, 1]
        assert changed.job.version == 2

    run_world(shard_dsn, body)


def test_a_single_time_moved_nearer_than_its_planned_run_is_called_at_its_new_time(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("moved", RunAt(world.second(20)))
        worker = await world.worker().join()
        await worker.plan_all()
        changed = await edited(world, "moved", schedule=RunAt(world.second(10)))
        assert changed.effective_from_ms == world.second(10)
        await worker.plan_all()
        assert [run[2] for run in await runs(world)] == [2, 1]

    run_world(shard_dsn, body)


def test_an_edit_that_meets_another_one_changes_nothing(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("twice", EVERY_10_S)
        stale = await job_named(world, "twice")
        await edited(world, "twice", timeout_ms=5_000)
        definition = replace(Definition.decode(stale.definition), timeout_ms=6_000)
        assert await edit_job(world.shard, stale, definition, None, WINDOWS) is None
        assert (await job_named(world, "twice")).version == 2

    run_world(shard_dsn, body)


def test_times_of_a_schedule_replaced_during_a_pause_are_skipped_on_record(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("replaced", EVERY_10_S)
        await paused(world, "replaced")
        await world.rows(f"UPDATE jobs SET resume_at = {world.now_ms // 10_000 * 10_000 - 50_000}")
        changed = await edited(world, "replaced", schedule=Cron("@yearly"))
        assert (changed.job.state, changed.effective_from_ms) == (JobState.PAUSED, None)
        records = await world.rows("SELECT skipped, reason FROM skips")
        assert records[0][0] >= 6
        assert records[0][1] == Reason.PAUSED
        await resumed(world, "replaced")
        assert await runs(world) == []

    run_world(shard_dsn, body)
