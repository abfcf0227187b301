"""Changes of a job, each against runs that are planned, claimed, in flight, between retries and finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.config import Dsn
from engine.model import (
    Cron,
    Definition,
    JobState,
    MissedRuns,
    OutcomeKind,
    Overlap,
    Reason,
    RunAt,
    RunState,
    SignalKind,
    Trigger,
    VersionEvent,
)
from engine.outbound.exchange import Outcome
from engine.rules.changes import HELD_UNTIL_MS, START_MARGIN_MS
from engine.store.changes import (
    Changed,
    Windows,
    cancel_run,
    delete_job,
    edit_job,
    pause_job,
    resume_job,
    start_run,
    take_back,
    wait_obeyed,
)
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from tests.support.world import PARTITIONS, TENANT, Worker, World, key_of, run_world

EVERY_10_S = Cron("*/10 * * * * *")
WINDOWS = Windows()
FREEZE_MS = WINDOWS.freeze_ms
DAY_MS = 86_400_000


async def job_named(world: World, name: str) -> JobRow:
    return (await find_jobs(world.shard, [(TENANT, name)]))[TENANT, name]


async def edited(world: World, name: str, **fields: Any) -> Changed:
    """The job with some fields of its definition replaced."""
    job = await job_named(world, name)
    definition = replace(Definition.decode(job.definition), **fields)
    changed = await edit_job(world.shard, job, definition, None, WINDOWS)
    assert changed is not None
    return changed


async def paused(world: World, name: str) -> Changed:
    changed = await pause_job(world.shard, await job_named(world, name), None, WINDOWS)
    assert changed is not None
    return changed


async def resumed(world: World, name: str, missed_runs: MissedRuns | None = None) -> Changed:
    changed = await resume_job(world.shard, await job_named(world, name), missed_runs, WINDOWS)
    assert changed is not None
    return changed


async def deleted(world: World, name: str) -> Changed:
    changed = await delete_job(world.shard, await job_named(world, name), WINDOWS)
    assert changed is not None
    return changed


async def planned_far(world: World, name: str = "far", schedule: Cron = EVERY_10_S) -> tuple[Worker, int]:
    """A worker that holds the job's runs up to 90 s ahead of the shard's clock."""
    job_id = await world.job(name, schedule)
    worker = await world.worker().join()
    now_ms = world.now_ms
    world.clock.wall_ms += 60_000
    await worker.plan_all()
    world.clock.wall_ms = now_ms
    return worker, job_id


async def runs(world: World) -> list[Any]:
    """(scheduled_at, state, version, attempt, worker) in order of time."""
    rows = await world.rows("SELECT scheduled_at, state, version, attempt, worker_id FROM runs ORDER BY scheduled_at")
    return [(row[0], RunState(row[1]), row[2], row[3], row[4]) for row in rows]


async def deferred(world: World) -> list[tuple[int, int, Reason]]:
    """(scheduled_at, due_at, reason)."""
    rows = await world.rows("SELECT scheduled_at, due_at, reason FROM deferred ORDER BY scheduled_at")
    return [(row[0], row[1], Reason(row[2])) for row in rows]


async def obeyed(world: World, worker: Worker) -> None:
    """The worker takes back all that it holds and is asked for."""
    asked = {run[0] for run in await runs(world) if run[1] == RunState.RUNNING}
    held = [(run.key, run.attempt) for run in worker.runs() if run.key.scheduled_at_ms in asked]
    await take_back(world.shard, worker.lease.worker_id, held, world.now_ms)


def answered(world: World, status: int) -> Outcome:
    now_ms = world.now_ms
    return Outcome(OutcomeKind.ANSWERED, status, None, b"", now_ms, now_ms, False, "", "")


async def between_retries(world: World, name: str, **settings: Any) -> Worker:
    """A worker whose run of the job failed a moment ago and waits for its second try."""
    await world.job(name, RunAt(world.second(0)), **settings)
    worker = await world.worker().join()
    await worker.plan_all()
    if not worker.runs():
        await worker.claim.run_once(world.now_ms)
    worker.settle.settled(worker.runs()[0], answered(world, 500))
    await worker.settle.run_once(world.now_ms)
    assert [run[1] for run in await runs(world)] == [RunState.WAITING]
    return worker


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
        await world.job("flying", RunAt(world.second(0)))
        worker = await world.worker().join()
        await worker.plan_all()
        if not worker.runs():
            await worker.claim.run_once(world.now_ms)
        await paused(world, "flying")
        worker.settle.settled(worker.runs()[0], answered(world, 200))
        await worker.settle.run_once(world.now_ms)
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
        await world.job("flying", RunAt(world.second(0)))
        worker = await world.worker().join()
        await worker.plan_all()
        if not worker.runs():
            await worker.claim.run_once(world.now_ms)
        await paused(world, "flying")
        worker.settle.settled(worker.runs()[0], answered(world, 500))
        await worker.settle.run_once(world.now_ms)
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
        await world.job("flying", RunAt(world.second(0)))
        worker = await world.worker().join()
        await worker.plan_all()
        if not worker.runs():
            await worker.claim.run_once(world.now_ms)
        await deleted(world, "flying")
        worker.settle.settled(worker.runs()[0], answered(world, 500))
        await worker.settle.run_once(world.now_ms)
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
        worker.settle.settled(worker.runs()[0], answered(world, 200))
        await worker.settle.run_once(world.now_ms)
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
