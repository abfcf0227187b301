"""The status of a fleet, read from a real shard."""

from engine.config import Dsn
from engine.model import Cron, Priority, Reason, RunAt, RunState
from engine.store.status import Status, read_status
from tests.support.world import PARTITIONS, World, run_world

AHEAD_MS = 60_000


async def status_of(world: World) -> Status:
    return await read_status([world.shard], AHEAD_MS)


def test_workers_and_their_partitions_are_summed_for_each_process(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        first, second = world.worker(), world.worker()
        for worker in (first, second, first, second):
            await worker.join()
        status = await status_of(world)
        [known] = status.workers.values()
        assert (status.partitions, status.partitions_owned, known.partitions) == (PARTITIONS, PARTITIONS, PARTITIONS)
        assert known.live
        await first.lease.release()
        await second.lease.release()
        assert (await status_of(world)).partitions_owned == 0
        assert not any(worker.live for worker in (await status_of(world)).workers.values())

    run_world(shard_dsn, body)


def test_planned_runs_and_next_times_are_counted_in_their_second(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        planned_ms, next_ms = world.second(10), world.second(50)
        for number in range(3):
            await world.job(f"soon-{number}", RunAt(planned_ms))
        await world.job("later", RunAt(next_ms))
        await world.job("beyond", RunAt(world.second(3_600)))
        worker = await world.worker().join()
        await worker.plan_all()
        assert dict((await status_of(world)).coming) == {planned_ms: 3, next_ms: 1}

    run_world(shard_dsn, body)


def test_a_cron_job_counts_at_each_of_its_times_and_once_each_where_there_are_too_many(shard_dsn, monkeypatch) -> None:
    async def body(world: World) -> None:
        first_ms = (world.now_ms // 10_000 + 4) * 10_000
        await world.job("every-ten-seconds", Cron("*/10 * * * * *"), next_run_at_ms=first_ms)
        await world.job("once", RunAt(first_ms))
        status = await status_of(world)
        assert status.complete
        assert status.coming[first_ms] == 2
        assert status.coming[first_ms + 10_000] == 1
        assert all(second_ms <= status.at_ms + AHEAD_MS for second_ms in status.coming)
        monkeypatch.setattr("engine.store.status.JOBS_MAX", 1)
        status = await status_of(world)
        assert not status.complete
        assert dict(status.coming) == {first_ms: 2}

    run_world(shard_dsn, body)


def test_the_lag_of_started_runs_is_counted_by_priority(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        due_ms = world.second(-2)
        await world.job("normal", RunAt(due_ms), next_run_at_ms=due_ms)
        await world.job("critical", RunAt(due_ms), next_run_at_ms=due_ms, priority=Priority.CRITICAL)
        worker = await world.worker().join()
        await worker.plan_all()
        await worker.claim.run_once(world.now_ms)
        in_flight = await status_of(world)
        assert (in_flight.in_flight, in_flight.oldest_at_ms) == (2, due_ms)
        for run in worker.runs():
            await worker.end(run)
        status = await status_of(world)
        assert {priority: sum(lags.values()) for priority, lags in status.lags.items()} == {
            Priority.NORMAL: 1,
            Priority.CRITICAL: 1,
        }
        assert all(lag_ms >= 2_000 for lags in status.lags.values() for lag_ms in lags)
        assert (status.in_flight, status.waiting, status.unplanned) == (0, 0, 0)

    run_world(shard_dsn, body)


def test_what_nobody_plans_or_claims_is_backlog(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        due_ms = world.second(-5)
        await world.job("unplanned", Cron("* * * * * *"), next_run_at_ms=due_ms)
        status = await status_of(world)
        assert (status.unplanned, status.oldest_at_ms) == (1, due_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        status = await status_of(world)
        assert status.unplanned == 0
        assert status.waiting > 0

    run_world(shard_dsn, body)


def test_what_a_limit_holds_up_is_shown_as_held_and_never_as_late(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        due_ms = world.second(1)
        await world.job("held", RunAt(due_ms), late_after_ms=1)
        worker = await world.worker().join()
        await worker.plan_all()
        (run,) = worker.runs()
        world.clock.advance(8_000)
        worker.settle.held_up(run)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, reason, tries FROM runs") == [(RunState.WAITING, Reason.HELD, 0)]
        assert "waiting.held" in next(fields["ends"] for name, fields in world.told if name == "run.settled")
        await world.rows(f"UPDATE deferred SET due_at = {await world.shard.now_ms() + 2_000}")
        status = await status_of(world)
        assert (status.held, status.waiting, status.oldest_at_ms) == (1, 0, None)
        await world.rows(f"UPDATE deferred SET due_at = {due_ms}")
        await worker.claim.run_once(world.now_ms)
        (run,) = worker.runs()
        assert run.held
        assert (await status_of(world)).oldest_at_ms is None
        await worker.end(run)
        assert await world.rows("SELECT state, reason FROM runs") == [(RunState.SUCCEEDED, Reason.HELD)]
        assert await world.rows("SELECT * FROM notices") == []
        assert not (await status_of(world)).lags

    run_world(shard_dsn, body)
