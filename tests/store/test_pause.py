"""Pause and resume of a job, against runs that are planned, claimed, in flight, between retries and missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.config import Dsn
from engine.model import (
    Cron,
    JobState,
    MissedRuns,
    Reason,
    RunAt,
    RunState,
    Trigger,
)
from engine.rules.changes import HELD_UNTIL_MS, START_MARGIN_MS
from engine.store.changes import (
    Changed,
    take_back,
    wait_obeyed,
)
from tests.support.changes import (
    DAY_MS,
    EVERY_10_S,
    FREEZE_MS,
    between_retries,
    deferred,
    deleted,
    edited,
    ended,
    in_flight,
    job_named,
    obeyed,
    paused,
    planned_far,
    resumed,
    runs,
)
from tests.support.world import World, run_world


def test_pause_takes_back_what_is_claimed_ahead_and_resume_plans_it_again(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, _ = await planned_far(world)
        changed = await paused(world, "far")
        after = await runs(world)
        margin_ms = await world.shard.now_ms() + START_MARGIN_MS
        assert {run[1] for run in after if run[0] > margin_ms} == {RunState.WITHDRAWN}
        withdrawn = [run[0] for run in after if run[1] == RunState.WITHDRAWN]
        assert (changed.job.state, changed.job.next_run_at_ms) == (JobState.PAUSED, None)
        assert changed.job.resume_at_ms == withdrawn[0]
        signals = await world.rows("SELECT COUNT(*) FROM signals")
        assert signals[0][0] == len(after)
        await obeyed(world, worker)
        after = await runs(world)
        assert {run[1] for run in after} == {RunState.WITHDRAWN}
        await worker.plan_all()
        assert await runs(world) == after, "a paused job is not planned"
        back = await resumed(world, "far")
        assert back.effective_from_ms == after[0][0]
        assert back.job.state == JobState.ACTIVE

    run_world(shard_dsn, body)


def test_a_run_about_to_start_is_its_holders_to_take_back(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("soon", RunAt(world.second(1)))
        worker = await world.worker().join()
        await worker.plan_all()
        held = worker.runs()[0]
        changed = await paused(world, "soon")
        assert [run[1] for run in await runs(world)] == [RunState.RUNNING]
        assert not await wait_obeyed(world.shard, changed.signalled)
        taken = await take_back(world.shard, worker.lease.worker_id, [(held.key, held.attempt)], world.now_ms)
        assert taken == 1
        assert [run[1] for run in await runs(world)] == [RunState.WITHDRAWN]
        assert (await job_named(world, "soon")).resume_at_ms == held.key.scheduled_at_ms
        again = await take_back(world.shard, worker.lease.worker_id, [(held.key, held.attempt)], world.now_ms)
        assert again == 0
        await world.rows("DELETE FROM signals")
        assert await wait_obeyed(world.shard, changed.signalled)

    run_world(shard_dsn, body)


def test_a_run_taken_back_after_its_job_was_resumed_waits_for_anyone(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("soon", RunAt(world.second(1)))
        worker = await world.worker().join()
        await worker.plan_all()
        held = worker.runs()[0]
        await paused(world, "soon")
        await resumed(world, "soon")
        await take_back(world.shard, worker.lease.worker_id, [(held.key, held.attempt)], world.now_ms)
        assert [run[1] for run in await runs(world)] == [RunState.WAITING]
        assert [row[2] for row in await deferred(world)] == [Reason.GIVEN_BACK]

    run_world(shard_dsn, body)


def test_p4_a_run_that_was_held_up_by_a_pause_is_not_due_before_its_second_when_resumed(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(3)
        await world.job("soon", RunAt(at_ms))
        worker = await world.worker().join()
        await worker.plan_all()
        await paused(world, "soon")
        worker.settle.given_back(worker.runs()[0])
        await worker.settle.run_once(world.now_ms)
        worker.lease.partitions = world.partitions
        await worker.claim.run_once(world.now_ms)
        assert [row[2] for row in await deferred(world)] == [Reason.HELD]
        await resumed(world, "soon")
        assert [row[1] for row in await deferred(world)] == [at_ms]
        await world.rows("UPDATE deferred SET due_at = 1")
        await worker.claim.run_once(world.now_ms)
        assert [run.due_ms for run in worker.runs()] == [at_ms]

    run_world(shard_dsn, body)


def test_p3_a_call_in_flight_is_finished_under_a_pause(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await in_flight(world, "flying")
        await paused(world, "flying")
        await ended(world, worker, 200)
        assert [run[1] for run in await runs(world)] == [RunState.SUCCEEDED]

    run_world(shard_dsn, body)


def test_a_retry_waits_while_its_job_is_paused_and_is_due_when_it_is_resumed(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await between_retries(world, "retried")
        await paused(world, "retried")
        assert [row[1:] for row in await deferred(world)] == [(HELD_UNTIL_MS, Reason.HELD)]
        world.clock.wall_ms += 3_600_000
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        await resumed(world, "retried")
        await worker.claim.run_once(world.now_ms)
        assert len(worker.runs()) == 1

    run_world(shard_dsn, body)


def test_a_retry_that_becomes_due_after_the_pause_is_held_by_whoever_would_claim_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await in_flight(world, "flying")
        await paused(world, "flying")
        await ended(world, worker, 500)
        world.clock.wall_ms += 3_600_000
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        assert [row[1:] for row in await deferred(world)] == [(HELD_UNTIL_MS, Reason.HELD)]

    run_world(shard_dsn, body)


@pytest.mark.parametrize(
    ("missed_runs", "caught_up", "skipped"),
    [(MissedRuns.LATEST, 1, 5), (MissedRuns.ALL, 3, 3), (MissedRuns.SKIP, 0, 6)],
)
def test_p8_every_time_inside_a_pause_is_caught_up_or_skipped_on_record(
    shard_dsn: Dsn, missed_runs: MissedRuns, caught_up: int, skipped: int
) -> None:
    async def body(world: World) -> None:
        await world.job("missed", EVERY_10_S, missed_runs=missed_runs, max_catch_up=3)
        await paused(world, "missed")
        since_ms = world.now_ms // 10_000 * 10_000 - 50_000
        await world.rows(f"UPDATE jobs SET resume_at = {since_ms}")
        changed = await resumed(world, "missed")
        now_ms = changed.job.updated_at_ms
        rows = await world.rows("SELECT trigger_kind, state FROM runs")
        assert {tuple(row) for row in rows} <= {(Trigger.CATCH_UP, RunState.WAITING)}
        records = await world.rows("SELECT SUM(skipped), MIN(from_at) FROM skips")
        times = now_ms // 10_000 - since_ms // 10_000 + 1
        assert len(rows) == caught_up
        assert (records[0][0] or 0) == times - caught_up >= skipped
        assert changed.effective_from_ms == (now_ms // 10_000 + 1) * 10_000
        assert all(due_at <= now_ms for _, due_at, _ in await deferred(world))

    run_world(shard_dsn, body)


def test_resuming_may_override_what_becomes_of_missed_runs(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("missed", EVERY_10_S)
        await paused(world, "missed")
        await world.rows(f"UPDATE jobs SET resume_at = {world.now_ms // 10_000 * 10_000 - 50_000}")
        await resumed(world, "missed", MissedRuns.SKIP)
        assert await runs(world) == []

    run_world(shard_dsn, body)


def test_a_years_pause_of_every_second_is_one_record(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("long", Cron("* * * * * *"))
        await paused(world, "long")
        since_ms = world.second(0) - 365 * DAY_MS
        await world.rows(f"UPDATE jobs SET resume_at = {since_ms}")
        async with asyncio.timeout(5):
            changed = await resumed(world, "long")
        records = await world.rows("SELECT skipped, reason FROM skips ORDER BY from_at")
        assert [row[1] for row in records] == [Reason.TOO_OLD, Reason.MISSED]
        times = (changed.job.updated_at_ms - since_ms) // 1000 + 1
        assert sum(row[0] for row in records) + len(await runs(world)) == times

    run_world(shard_dsn, body)


@pytest.mark.parametrize("ends", [resumed, deleted], ids=["resume", "delete"])
def test_p2_a_time_that_has_its_run_is_not_skipped_with_the_times_around_it(
    shard_dsn: Dsn, ends: Callable[[World, str], Awaitable[Changed]]
) -> None:
    async def body(world: World) -> None:
        await world.job("late", Cron("* * * * * *"), next_run_at_ms=world.second(-6))
        worker = await world.worker().join()
        await worker.plan_all()
        ran_ms = world.second(-3)
        await world.rows(f"UPDATE runs SET state = {RunState.SUCCEEDED:d} WHERE scheduled_at = {ran_ms}")
        await paused(world, "late")
        await ends(world, "late")
        skips = await world.rows("SELECT from_at, to_at, skipped FROM skips ORDER BY from_at")
        assert tuple(skips[0]) == (world.second(-6), world.second(-4), 3)
        assert skips[1][0] == world.second(-2)
        assert (ran_ms, RunState.SUCCEEDED) in await world.states()

    run_world(shard_dsn, body)


def test_p2_a_pause_ends_on_record_what_the_schedule_before_an_edit_had_left(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, _ = await planned_far(world, "far", Cron("* * * * * *"))
        await edited(world, "far", schedule=Cron("0 0 1 1 *"))
        changed = await paused(world, "far")
        await obeyed(world, worker)
        ended = await world.rows(f"SELECT reason, COUNT(*) FROM runs WHERE state = {RunState.SKIPPED:d} GROUP BY 1")
        assert [row[0] for row in ended] == [Reason.PAUSED]
        assert ended[0][1] >= FREEZE_MS // 1000 - 1
        assert RunState.RUNNING not in {run[1] for run in await runs(world)}
        assert changed.signalled.last_id - changed.signalled.first_id + 1 >= ended[0][1]
        assert (await resumed(world, "far")).job.next_run_at_ms == changed.job.resume_at_ms

    run_world(shard_dsn, body)
