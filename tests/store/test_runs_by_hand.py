"""A run started by hand, and the cancelling of runs that wait, are claimed, finished or keep others from running."""

from __future__ import annotations

import asyncio

from engine.config import Dsn
from engine.model import (
    Cron,
    Overlap,
    RunAt,
    RunState,
    SignalKind,
    Trigger,
)
from engine.store.changes import (
    cancel_run,
    start_run,
)
from tests.support.changes import (
    WINDOWS,
    between_retries,
    deferred,
    ended,
    job_named,
    paused,
    runs,
)
from tests.support.world import World, run_world


def test_a_run_started_by_hand_has_the_next_free_millisecond_and_waits_to_be_claimed(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("by-hand", Cron("@yearly"))
        await paused(world, "by-hand")
        job = await job_named(world, "by-hand")
        started = await asyncio.gather(*(start_run(world.shard, job, WINDOWS) for _ in range(5)))
        times = [run.scheduled_at_ms for run in started if run is not None]
        assert len(set(times)) == 5
        assert all(at_ms % 1000 for at_ms in times)
        world.clock.wall_ms += 1_000
        worker = await world.worker().join()
        await worker.claim.run_once(world.now_ms)
        assert sorted(run.key.scheduled_at_ms for run in worker.runs()) == sorted(times), "a pause lets them stand"
        rows = await world.rows("SELECT DISTINCT trigger_kind FROM runs")
        assert rows[0][0] == Trigger.MANUAL

    run_world(shard_dsn, body)


def test_cancel_of_a_waiting_run_ends_it_at_once_and_again_answers_the_same(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await between_retries(world, "cancelled")
        row = (await world.rows("SELECT partition_id, scheduled_at, job_id FROM runs"))[0]
        for _ in range(2):
            cancelled = await cancel_run(world.shard, *row)
            assert cancelled is not None
            assert cancelled.state == RunState.CANCELLED
        assert [run[1] for run in await runs(world)] == [RunState.CANCELLED]
        assert await deferred(world) == []

    run_world(shard_dsn, body)


def test_cancel_of_a_claimed_run_asks_its_holder(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("held", RunAt(world.second(10)))
        worker = await world.worker().join()
        await worker.plan_all()
        row = (await world.rows("SELECT partition_id, scheduled_at, job_id FROM runs"))[0]
        cancelled = await cancel_run(world.shard, *row)
        assert cancelled is not None
        assert cancelled.state == RunState.RUNNING
        signals = await world.rows("SELECT worker_id, kind FROM signals")
        assert [tuple(signal) for signal in signals] == [(worker.lease.worker_id, SignalKind.CANCEL)]
        assert (await world.rows("SELECT cancel_requested FROM runs"))[0][0] == 1

    run_world(shard_dsn, body)


def test_cancel_of_a_finished_run_says_its_state_and_changes_nothing(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await between_retries(world, "done")
        world.clock.wall_ms += 3_600_000
        await worker.claim.run_once(world.now_ms)
        await ended(world, worker, 200)
        row = (await world.rows("SELECT partition_id, scheduled_at, job_id FROM runs"))[0]
        cancelled = await cancel_run(world.shard, *row)
        assert cancelled is not None
        assert cancelled.state == RunState.SUCCEEDED
        assert await cancel_run(world.shard, row[0], row[1] + 1000, row[2]) is None

    run_world(shard_dsn, body)


def test_cancel_of_an_open_run_lets_the_next_one_that_must_not_overlap_go(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await between_retries(world, "one-at-a-time", overlap=Overlap.WAIT)
        job = await job_named(world, "one-at-a-time")
        first = (await world.rows("SELECT partition_id, scheduled_at, job_id FROM runs"))[0]
        await start_run(world.shard, job, WINDOWS)
        world.clock.wall_ms += 1_000
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == [], "a run between retries is open"
        await cancel_run(world.shard, *first)
        world.clock.wall_ms = await world.shard.now_ms()
        await worker.claim.run_once(world.now_ms)
        assert len(worker.runs()) == 1

    run_world(shard_dsn, body)
