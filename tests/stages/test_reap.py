"""Reaping and sweeping on a real shard: a dead worker's runs go back, a live one's are left alone."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.errors import StoreUnavailable
from engine.model import OutcomeKind, Overlap, Reason, RetryPolicy, RunAt, RunState
from engine.outbound.target import Guard
from engine.rules.lanes import taken_lane
from engine.stages.held import HeldRun
from engine.stages.reap import LOST_MS, Reap
from engine.stages.sweep import BEHIND_MS, STEP_MS
from engine.stages.versions import Versions
from engine.store.changes import cancel_run
from tests.support.world import SETTINGS, Worker, World, run_world


async def planned(world: World, count: int, ahead_s: int = 1, **settings: object) -> Worker:
    for number in range(count):
        await world.job(f"job-{number}", RunAt(world.second(ahead_s)), **settings)
    worker = await world.worker().join()
    await worker.plan_all()
    assert len(worker.runs()) == count
    return worker


async def release(world: World, worker: Worker) -> None:
    await worker.lease.release()


async def reap_all(world: World, reap: Reap) -> None:
    while await reap.run_once(world.now_ms):
        pass


def test_p10_runs_of_a_released_worker_that_were_not_due_wait_for_their_second_and_lose_no_try(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 3, ahead_s=20)
        await release(world, worker)
        await reap_all(world, world.reap())
        assert await world.rows("SELECT DISTINCT state, tries FROM runs") == [(RunState.WAITING, 0)]
        assert await world.rows("SELECT DISTINCT due_at, reason FROM deferred") == [(world.second(20), Reason.REAPED)]
        assert await world.rows("SELECT * FROM workers") == []

    run_world(shard_dsn, body)


def test_p10_runs_that_may_have_fired_cost_a_try_and_are_due_now(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 3)
        world.clock.advance(3_000)
        await release(world, worker)
        await reap_all(world, world.reap())
        assert await world.rows("SELECT DISTINCT state, tries FROM runs") == [(RunState.WAITING, 1)]
        assert await world.rows("SELECT DISTINCT due_at FROM deferred") == [(world.now_ms,)]
        assert await world.rows("SELECT DISTINCT outcome FROM attempts") == [(OutcomeKind.WORKER_LOST,)]

    run_world(shard_dsn, body)


def test_p2_a_lost_run_whose_tries_are_used_up_fails_worker_lost_and_is_buried(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1, retry=RetryPolicy(max_attempts=1))
        world.clock.advance(3_000)
        await release(world, worker)
        await reap_all(world, world.reap())
        assert await world.rows("SELECT state, reason FROM runs") == [(RunState.FAILED, Reason.WORKER_LOST)]
        assert await world.rows("SELECT COUNT(*) FROM dead_letters") == [(1,)]
        assert await world.rows("SELECT COUNT(*) FROM notices") == [(1,)]

    run_world(shard_dsn, body)


def test_p2_a_cancelled_run_whose_version_cannot_be_read_leaves_its_job_to_the_next_one(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("alone", RunAt(world.second(1)), overlap=Overlap.SKIP)
        worker = await world.worker().join()
        await worker.plan_all()
        world.clock.advance(2_000)
        await worker.claim.run_once(world.now_ms)
        (run,) = worker.runs()
        await cancel_run(world.shard, *run.key)
        await world.rows("UPDATE job_versions SET definition = 'not JSON'")
        world.versions = Versions(Guard(["127.0.0.0/8"], []))
        await release(world, worker)
        await reap_all(world, world.reap())
        assert await world.states() == [(run.key.scheduled_at_ms, RunState.CANCELLED)]
        assert await world.rows("SELECT * FROM active") == []

    run_world(shard_dsn, body)


def test_after_an_outage_an_expired_lease_counts_once_the_shard_has_answered_for_a_whole_one(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        await world.rows("UPDATE workers SET lease_until = 1")
        reap = world.reap()
        for _ in range(SETTINGS.lease_ms // SETTINGS.heartbeat_ms):
            await reap_all(world, reap)
            world.clock.advance(SETTINGS.heartbeat_ms)
        world.clock.advance(-1)
        await reap_all(world, reap)
        assert (await world.states())[0][1] == RunState.RUNNING
        await worker.lease.run_once(world.now_ms)
        assert worker.lost == 0
        await world.rows("UPDATE workers SET lease_until = 1")
        world.clock.advance(1)
        await reap_all(world, reap)
        assert (await world.states())[0][1] == RunState.WAITING

    run_world(shard_dsn, body)


def test_a_condemned_worker_cannot_come_back_under_its_old_id(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        old_id = worker.lease.worker_id
        await release(world, worker)
        await worker.lease.run_once(world.now_ms)
        assert worker.lost == 1
        assert worker.lease.worker_id != old_id

    run_world(shard_dsn, body)


def test_a_lease_lost_and_regained_20_times_leaves_one_owner_and_nothing_of_the_old_ones(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 2, ahead_s=25)
        for _ in range(20):
            await release(world, worker)
            await worker.lease.run_once(world.now_ms)
            await reap_all(world, world.reap())
        assert worker.lost == 20
        assert await world.rows("SELECT COUNT(*) FROM workers") == [(1,)]
        assert await world.rows("SELECT DISTINCT worker_id FROM leases") == [(worker.lease.worker_id,)]

    run_world(shard_dsn, body)


def test_partitions_are_shared_out_evenly_and_move_when_a_worker_leaves(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        workers = [await world.worker().join() for _ in range(3)]
        for _ in range(3):
            for worker in workers:
                await worker.lease.run_once(world.now_ms)
        assert sorted(len(worker.lease.partitions) for worker in workers) == [2, 3, 3]
        await release(world, workers[0])
        for worker in workers[1:] * 2:
            await worker.lease.run_once(world.now_ms)
        assert [len(worker.lease.partitions) for worker in workers[1:]] == [4, 4]

    run_world(shard_dsn, body)


def test_the_mark_passes_finished_runs_and_defers_open_ones_to_the_end_of_their_lease(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 2)
        await worker.end(worker.runs()[0])
        open_run = worker.runs()[0]
        await world.rows(f"UPDATE marks SET mark_at = mark_at - {BEHIND_MS + 2 * STEP_MS}")
        past_ms = open_run.key.scheduled_at_ms - BEHIND_MS - STEP_MS
        await world.rows(f"UPDATE runs SET scheduled_at = {past_ms}")
        await world.sweep().run_once(world.now_ms)
        rows = await world.rows("SELECT job_id, due_at, reason FROM deferred")
        assert rows == [(open_run.key.job_id, open_run.lease_until_ms, Reason.SWEPT)]
        assert await world.rows(f"SELECT COUNT(*) FROM marks WHERE mark_at <= {past_ms}") == [(0,)]

    run_world(shard_dsn, body)


async def reap_for_a_lease(world: World, reap: Reap) -> None:
    """Reap again and again while the shard answers for a whole lease."""
    for _ in range(SETTINGS.lease_ms // SETTINGS.heartbeat_ms + 1):
        await reap_all(world, reap)
        world.clock.advance(SETTINGS.heartbeat_ms)
    await reap_all(world, reap)


async def lost(world: World, run: HeldRun, ended_ms: int, lane: int | None = None) -> None:
    """The run's lease ended so long ago by the shard's clock, and the mark has passed it."""
    lane = taken_lane(run.key.partition_id) if lane is None else lane
    lease_until_ms = await world.shard.now_ms() - ended_ms
    await world.rows(f"UPDATE runs SET lease_until = {lease_until_ms}")
    columns = "partition_id, scheduled_at, job_id, due_at, reason, priority, lane"
    row = (*run.key, lease_until_ms, int(Reason.SWEPT), 2, lane)
    await world.rows(f"REPLACE INTO deferred ({columns}) VALUES {row}")


def test_p2_a_claim_committed_after_its_worker_was_reaped_is_found_when_its_lease_is_over(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        await world.rows("DELETE FROM workers")
        await lost(world, worker.runs()[0], 1)
        await reap_for_a_lease(world, world.reap())
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.WAITING, 1)]
        ((due_ms, reason),) = await world.rows("SELECT due_at, reason FROM deferred")
        assert due_ms <= world.now_ms
        assert reason == Reason.REAPED

    run_world(shard_dsn, body)


def test_p2_a_lost_run_that_stands_among_what_waits_is_put_where_it_is_looked_for(shard_dsn: Dsn) -> None:
    """A release before left it there: whoever claims meets it once its lease is over."""

    async def body(world: World) -> None:
        worker = await planned(world, 1)
        (run,) = worker.runs()
        await world.rows("DELETE FROM workers")
        await lost(world, run, 1_000, lane=run.key.partition_id)
        world.clock.wall_ms = await world.shard.now_ms()
        other = await world.worker().join()
        await other.claim.run_once(world.now_ms)
        assert other.runs() == []
        assert await world.rows("SELECT lane FROM deferred") == [(taken_lane(run.key.partition_id),)]
        await reap_for_a_lease(world, world.reap())
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.WAITING, 1)]
        assert await world.rows("SELECT lane FROM deferred") == [(run.key.partition_id,)]

    run_world(shard_dsn, body)


def test_p2_a_run_that_a_live_worker_has_lost_is_found_when_it_has_had_long_enough_to_end_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        reap = world.reap()
        await lost(world, worker.runs()[0], LOST_MS - 30_000)
        await reap_for_a_lease(world, reap)
        assert await world.rows("SELECT state FROM runs") == [(RunState.RUNNING,)]
        await lost(world, worker.runs()[0], LOST_MS)
        await reap_for_a_lease(world, reap)
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.WAITING, 1)]
        await worker.end(worker.runs()[0])
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.WAITING, 1)]

    run_world(shard_dsn, body)


def test_p10_a_machine_that_was_paused_whole_condemns_no_worker_before_it_could_renew(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await planned(world, 1)
        reap = world.reap()
        await reap_for_a_lease(world, reap)
        world.clock.advance(2 * SETTINGS.lease_ms)  # the machine slept; boot time runs on
        await world.rows("UPDATE workers SET lease_until = 1")
        await reap_all(world, reap)
        assert (await world.states())[0][1] == RunState.RUNNING

    run_world(shard_dsn, body)


def test_p10_a_shard_that_can_be_read_but_not_written_does_not_count_as_answering(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        reap = world.reap()
        await reap_for_a_lease(world, reap)
        await world.rows("UPDATE workers SET lease_until = 1")
        await world.rows("SET GLOBAL super_read_only = ON")
        try:
            with pytest.raises(StoreUnavailable):
                await reap_all(world, reap)
        finally:
            await world.rows("SET GLOBAL super_read_only = OFF")
            await world.rows("SET GLOBAL read_only = OFF")
        await reap_all(world, reap)
        assert (await world.states())[0][1] == RunState.RUNNING
        await worker.lease.run_once(world.now_ms)
        assert worker.lost == 0

    run_world(shard_dsn, body)


def test_an_idle_transaction_on_a_run_below_the_mark_holds_up_the_mark_and_no_planner(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await planned(world, 1)
        await world.rows(f"UPDATE marks SET mark_at = mark_at - {BEHIND_MS + 2 * STEP_MS}")
        past_ms = worker.runs()[0].key.scheduled_at_ms - BEHIND_MS - STEP_MS
        await world.rows(f"UPDATE runs SET scheduled_at = {past_ms}")
        async with world.shard.transaction() as idle:
            await idle.run(b"SELECT * FROM runs FOR UPDATE")
            await world.sweep().run_once(world.now_ms)
            assert "mark.busy" in world.names_told()
            assert await world.rows(f"SELECT COUNT(*) FROM marks WHERE mark_at <= {past_ms}") != [(0,)]
        await world.sweep().run_once(world.now_ms)
        assert await world.rows("SELECT COUNT(*) FROM deferred") == [(1,)]

    run_world(shard_dsn, body)
