"""Planning on a real shard: one run per scheduled time, whoever plans and however often."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from engine.config import Dsn
from engine.model import Cron, MissedRuns, NoticeKind, Overlap, Priority, Reason, RunAt, RunState
from engine.rules import peaks
from engine.stages import forecast
from tests.support.world import World, run_world


def test_p1_a_due_one_off_job_is_born_claimed_once_by_its_planner(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(10)
        await world.job("once", RunAt(at_ms))
        worker = await world.worker().join()
        await worker.plan_all()
        await worker.plan_all()
        assert await world.states() == [(at_ms, RunState.RUNNING)]
        assert [run.due_ms for run in worker.runs()] == [at_ms]
        assert await world.rows("SELECT next_run_at, last_run_at FROM jobs") == [(None, at_ms)]

    run_world(shard_dsn, body)


def test_p1_four_planners_at_once_give_every_scheduled_time_one_run_and_are_quiet(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        for number in range(40):
            await world.job(f"each-second-{number}", Cron("* * * * * *"))
        workers = [world.worker() for _ in range(4)]
        for worker in workers:
            await worker.join()
            worker.lease.partitions = world.partitions
        await asyncio.gather(*(worker.plan_all() for worker in workers))
        states = await world.states()
        assert len(states) == len(set(await world.rows("SELECT job_id, scheduled_at FROM runs"))) >= 40 * 30
        held = [run.identity for worker in workers for run in worker.runs()]
        assert len(held) == len(set(held)) == len(states)
        assert not [name for name in world.names_told() if name.startswith("stage.")]

    run_world(shard_dsn, body)


def test_p1_a_planner_that_read_an_old_next_time_writes_nothing(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(10)
        await world.job("once", RunAt(at_ms))
        worker = await world.worker().join()
        await worker.plan_all()
        # The planner's own transaction, replayed as a stale one would: the same job with the time it had before.
        await world.rows(f"UPDATE jobs SET next_run_at = {at_ms}")
        await worker.plan_all()
        assert await world.states() == [(at_ms, RunState.RUNNING)]
        assert len(worker.runs()) == 1

    run_world(shard_dsn, body)


def test_a_withdrawn_run_that_is_planned_again_opens_with_the_next_attempt(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(10)
        await world.job("once", RunAt(at_ms))
        first, second = await world.worker().join(), world.worker()
        await first.plan_all()
        await world.rows(f"UPDATE runs SET state = {RunState.WITHDRAWN:d}, attempt = attempt + 1")
        await world.rows(f"UPDATE jobs SET next_run_at = {at_ms}")
        await second.join()
        second.lease.partitions = world.partitions
        await second.plan_all()
        assert [run.attempt for run in second.runs()] == [3]
        await first.end(first.runs()[0])
        assert await world.states() == [(at_ms, RunState.RUNNING)]
        await second.end(second.runs()[0])
        assert await world.states() == [(at_ms, RunState.SUCCEEDED)]

    run_world(shard_dsn, body)


def test_p8_times_missed_by_an_outage_follow_the_jobs_policy(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        minute_ms, hour_ms = 60_000, 3_600_000
        half_an_hour_ago_ms = world.now_ms // minute_ms * minute_ms - hour_ms // 2
        hourly = Cron(f"{half_an_hour_ago_ms // minute_ms % 60} * * * *")
        for policy in MissedRuns:
            await world.job(policy.name, hourly, missed_runs=policy, next_run_at_ms=half_an_hour_ago_ms - 3 * hour_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        per_job = dict(
            await world.rows("SELECT j.name, COUNT(*) FROM runs r JOIN jobs j USING (partition_id, job_id) GROUP BY 1")
        )
        skipped = dict(
            await world.rows("SELECT j.name, s.skipped FROM skips s JOIN jobs j USING (partition_id, job_id)")
        )
        assert per_job["LATEST"] == 1
        assert skipped["LATEST"] == per_job["ALL"] - 1
        assert skipped["SKIP"] == per_job["ALL"]
        assert "ALL" not in skipped

    run_world(shard_dsn, body)


def test_p2_ranges_that_are_skipped_are_told_as_one_notice_a_job_and_minute(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        minute_ms, day_ms = 60_000, 86_400_000
        await world.rows(f"UPDATE floor SET floor_at = {world.now_ms // day_ms * day_ms - day_ms}")
        since_ms = world.now_ms // minute_ms * minute_ms - 3 * day_ms
        job_id = await world.job("old", Cron("* * * * *"), missed_runs=MissedRuns.SKIP, next_run_at_ms=since_ms)
        await (await world.worker().join()).plan_all()
        skips = await world.rows("SELECT from_at, skipped, reason FROM skips ORDER BY from_at")
        assert [row[2] for row in skips] == [Reason.TOO_OLD, Reason.MISSED]
        notices = await world.rows("SELECT job_id, kind, run_at, merged FROM notices")
        assert notices == [(job_id, NoticeKind.SKIPPED, since_ms, sum(row[1] for row in skips))]

    run_world(shard_dsn, body)


def test_what_may_not_be_born_claimed_waits_in_deferred(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(10)
        await world.job("alone", RunAt(at_ms), overlap=Overlap.SKIP)
        worker = await world.worker().join()
        await worker.plan_all()
        assert await world.states() == [(at_ms, RunState.WAITING)]
        assert await world.rows("SELECT due_at, reason FROM deferred") == [(at_ms, Reason.SCHEDULED)]
        assert worker.runs() == []

    run_world(shard_dsn, body)


def test_a_job_that_cannot_be_evaluated_is_set_aside_and_delays_no_other(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(10)
        await world.job("broken", Cron("* * * * *"), next_run_at_ms=at_ms)
        await world.rows("UPDATE job_versions SET definition = '{}'")
        await world.job("sound", RunAt(at_ms))
        worker = await world.worker().join()
        await worker.plan_all()
        assert len(worker.runs()) == 1
        broken = await world.rows("SELECT state, next_run_at, resume_at FROM jobs WHERE name = 'broken'")
        assert broken == [(3, None, at_ms)]
        assert "job.invalid" in world.names_told()

    run_world(shard_dsn, body)


def test_a_large_second_is_planned_early_one_batch_a_round(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "LARGE_JOBS", 5)
    monkeypatch.setattr(peaks, "JOBS_PER_S", 1)

    async def body(world: World) -> None:
        at_ms = world.second(40)
        for number in range(40):
            await world.job(f"peak-{number}", RunAt(at_ms))
        await world.job("beside", RunAt(world.second(39)))
        worker = await world.worker().join()
        await worker.plan_all()
        assert worker.runs() == []
        await worker.forecast.run_once(world.now_ms)
        assert worker.forecast.large == {at_ms: 40}
        assert not await worker.plan.run_once(world.now_ms)
        assert len(worker.runs()) == 41

    run_world(shard_dsn, body)


def test_p4_a_host_whose_clock_is_off_plans_but_claims_nothing_ahead(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        world.clock.host_offset_ms = 90_000
        at_ms = world.second(10)
        await world.job("once", RunAt(at_ms))
        worker = await world.worker().join()
        await worker.plan_all()
        assert await world.states() == [(at_ms, RunState.WAITING)]
        assert worker.runs() == []
        assert "clock.off" in world.names_told()

    run_world(shard_dsn, body)


def test_p6_jobs_of_many_runs_are_planned_in_steps_that_hold_up_nobody(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.stages.plan.RUNS_PER_BATCH", 60)

    async def body(world: World) -> None:
        for n in range(10):
            await world.job(f"every-second-{n}", Cron("* * * * * *"))
        worker = await world.worker().join()
        steps = []
        while await worker.plan.run_once(world.now_ms):
            steps.append(len(worker.runs()) - sum(steps))
        assert max(steps) < 60 + 31, "a job's runs are never parted"
        times = Counter(run.key.job_id for run in worker.runs())
        assert len(times) == 10
        assert set(times.values()) <= {30, 31}, "each of them up to the horizon, and none twice"

    run_world(shard_dsn, body)


def test_p5_where_planning_is_behind_what_is_on_time_and_critical_is_not_behind_a_late_backlog(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.stages.plan.JOBS_PER_BATCH", 60)

    async def body(world: World) -> None:
        due_ms = world.second(101)
        for n in range(80):
            await world.job(f"backlog-{n}", RunAt(world.second(1)), priority=Priority.HIGH)
        for n in range(80):
            await world.job(f"low-{n}", RunAt(due_ms), priority=Priority.LOW)
        await world.job("critical", RunAt(due_ms), priority=Priority.CRITICAL)
        world.clock.advance(100_000)
        worker = await world.worker().join()
        assert await worker.plan.run_once(world.now_ms)
        planned = Counter(run.priority for run in worker.runs())
        assert planned[Priority.CRITICAL] == 1
        assert planned[Priority.LOW] + planned[Priority.CRITICAL] == 30
        assert planned[Priority.HIGH] == 30

    run_world(shard_dsn, body)
