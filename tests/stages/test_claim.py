"""Claiming on a real shard: through deferred alone, by the owner ahead, by anyone once late."""

from __future__ import annotations

import asyncio

import pytest

from engine.config import Dsn
from engine.model import Cron, NoticeKind, Overlap, Priority, Reason, RunAt, RunState
from engine.outbound.target import Guard
from engine.rules.notices import MINUTE_MS
from engine.stages.claim import LATE_MS
from engine.stages.held import PREPARE_MS
from engine.stages.take import OVERLAP_WAIT_MS
from engine.stages.versions import Versions
from engine.store.changes import cancel_run
from tests.support.world import Worker, World, run_world


async def give_all_back(worker: Worker) -> None:
    """Plan what is within reach, and give it back: it waits."""
    await worker.plan_all()
    for run in worker.runs():
        worker.settle.given_back(run)
    await worker.settle.run_once(worker.world.now_ms)
    assert worker.runs() == []


async def waiting(world: World, ahead_s: int) -> Worker:
    """A worker that planned one run and gave it back; the run is due so far from now."""
    await world.job("once", RunAt(world.second(ahead_s)))
    worker = await world.worker().join()
    await give_all_back(worker)
    return worker


def test_the_owner_claims_ahead_by_the_time_it_needs_to_prepare_and_not_before(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await waiting(world, 10)
        world.clock.wall_ms = world.second(10) - PREPARE_MS - 1
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        world.clock.advance(1)
        await worker.claim.run_once(world.now_ms)
        assert [run.attempt for run in worker.runs()] == [2]

    run_world(shard_dsn, body)


def test_p10_what_its_owner_has_not_claimed_is_anybodys_once_late(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await waiting(world, 1)
        due_ms = world.second(1)
        other = await world.worker().join()
        assert other.lease.partitions == []
        world.clock.wall_ms = due_ms + LATE_MS - 1
        await other.claim.run_once(world.now_ms)
        assert other.runs() == []
        world.clock.advance(1)
        await other.claim.run_once(world.now_ms)
        assert len(other.runs()) == 1

    run_world(shard_dsn, body)


def test_p3_of_four_claimers_at_once_one_holds_the_run(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await waiting(world, 1)
        world.clock.advance(10_000)
        others = [await world.worker().join() for _ in range(4)]
        await asyncio.gather(*(other.claim.run_once(world.now_ms) for other in others))
        assert sum(len(other.runs()) for other in others) == 1

    run_world(shard_dsn, body)


def test_a_deferred_row_of_a_finished_run_is_cleared_away(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await waiting(world, 1)
        await world.rows(f"UPDATE runs SET state = {RunState.SUCCEEDED:d}")
        world.clock.advance(2_000)
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        assert await world.rows("SELECT * FROM deferred") == []

    run_world(shard_dsn, body)


def test_a_waiting_run_whose_cancel_was_asked_for_ends_cancelled_and_is_never_held(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await waiting(world, 1)
        await world.rows("UPDATE runs SET cancel_requested = 1")
        world.clock.advance(2_000)
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        assert (await world.states())[0][1] == RunState.CANCELLED
        assert await world.rows("SELECT * FROM deferred") == []

    run_world(shard_dsn, body)


async def overlapping(world: World, overlap: Overlap) -> Worker:
    """A job due every second with its first run in flight and two more due."""
    await world.job("each-second", Cron("* * * * * *"), overlap=overlap)
    worker = await world.worker().join()
    await worker.plan_all()
    world.clock.wall_ms = world.second(1)
    await worker.claim.run_once(world.now_ms)
    assert len(worker.runs()) == 1
    world.clock.advance(2_000)
    await worker.claim.run_once(world.now_ms)
    return worker


def test_overlap_skip_records_the_runs_that_were_due_while_one_was_open(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await overlapping(world, Overlap.SKIP)
        (run,) = worker.runs()
        skipped = await world.rows(f"SELECT COUNT(*), MIN(reason) FROM runs WHERE state = {RunState.SKIPPED:d}")
        assert skipped == [(2, Reason.OVERLAP)]
        await worker.end(run)
        assert await world.rows("SELECT * FROM active") == []
        world.clock.advance(1_000)
        await worker.claim.run_once(world.now_ms)
        assert len(worker.runs()) == 1

    run_world(shard_dsn, body)


def test_p2_runs_skipped_for_an_open_one_are_told_together(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        world.clock.advance(MINUTE_MS - world.now_ms % MINUTE_MS)
        await overlapping(world, Overlap.SKIP)
        ((skipped,),) = await world.rows(f"SELECT COUNT(*) FROM runs WHERE state = {RunState.SKIPPED:d}")
        notices = await world.rows("SELECT kind, merged, due_at - about_at FROM notices")
        assert notices == [(NoticeKind.SKIPPED, skipped, MINUTE_MS)]

    run_world(shard_dsn, body)


@pytest.mark.parametrize("stored", ["'{}'", "'not JSON'"])
def test_p2_a_run_whose_version_cannot_be_read_ends_skipped_and_stands_in_nobodys_way(
    shard_dsn: Dsn, stored: str
) -> None:
    async def body(world: World) -> None:
        await waiting(world, 1)
        await world.rows(f"UPDATE job_versions SET definition = {stored}")
        world.versions = Versions(Guard(["127.0.0.0/8"], []))
        world.clock.advance(2_000)
        worker = await world.worker().join()
        await worker.claim.run_once(world.now_ms)
        assert await world.rows("SELECT state, reason FROM runs") == [(RunState.SKIPPED, Reason.INVALID)]
        assert await world.rows("SELECT * FROM deferred") == []
        assert await world.rows("SELECT kind FROM notices") == [(NoticeKind.SKIPPED,)]
        assert world.names_told().count("job.invalid") == 1

    run_world(shard_dsn, body)


def test_overlap_wait_defers_one_run_skips_the_rest_and_wakes_it_when_the_open_one_ends(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await overlapping(world, Overlap.WAIT)
        (run,) = worker.runs()
        waits = await world.rows(f"SELECT due_at FROM deferred WHERE reason = {Reason.OVERLAP:d}")
        assert waits == [(world.now_ms + OVERLAP_WAIT_MS,)]
        await worker.end(run)
        await worker.claim.run_once(world.now_ms)
        (waited,) = worker.runs()
        assert waited.key.scheduled_at_ms == run.key.scheduled_at_ms + 1_000
        counts = await world.rows(f"SELECT COUNT(*) FROM runs WHERE state = {RunState.SKIPPED:d}")
        assert counts == [(1,)]

    run_world(shard_dsn, body)


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.WAIT])
def test_a_run_that_was_given_back_and_then_cancelled_leaves_its_job_to_the_next_one(
    shard_dsn: Dsn, overlap: Overlap
) -> None:
    async def body(world: World) -> None:
        worker = await overlapping(world, overlap)
        (run,) = worker.runs()
        worker.settle.given_back(run)  # decided, and not written yet, when the cancel comes
        await cancel_run(world.shard, *run.key)
        await worker.settle.run_once(world.now_ms)
        for _ in range(2):  # first the end of the one, then whoever comes next
            world.clock.advance(1_000)
            await worker.claim.run_once(world.now_ms)
        assert (run.key.scheduled_at_ms, RunState.CANCELLED) in await world.states()
        (following,) = worker.runs()
        assert await world.rows("SELECT scheduled_at FROM active") == [(following.key.scheduled_at_ms,)]

    run_world(shard_dsn, body)


def test_an_overlap_run_between_retries_is_open_and_keeps_its_job(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await overlapping(world, Overlap.SKIP)
        await worker.end(worker.runs()[0], 500)
        world.clock.advance(1_000)
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        world.clock.advance(4_000)
        await worker.claim.run_once(world.now_ms)
        assert [run.attempt for run in worker.runs()] == [2]

    run_world(shard_dsn, body)


def test_p5_a_caught_up_run_is_of_the_late_class_though_it_is_due_now_and_its_retry_is_not(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        since_ms = world.now_ms // MINUTE_MS * MINUTE_MS - 60 * MINUTE_MS
        await world.job("old", Cron("* * * * *"), next_run_at_ms=since_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        await worker.claim.run_once(world.now_ms)
        (run,) = [run for run in worker.runs() if run.key.scheduled_at_ms < world.now_ms - 5 * MINUTE_MS]
        assert run.late
        await worker.end(run, 500)
        world.clock.advance(6_000)
        await worker.claim.run_once(world.now_ms)
        assert [again.late for again in worker.runs() if again.key == run.key] == [False]

    run_world(shard_dsn, body)


def test_p5_where_not_all_can_be_claimed_at_once_what_is_on_time_and_critical_is_not_behind_a_late_backlog(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.stages.claim.CANDIDATES_MAX", 4)

    async def body(world: World) -> None:
        for n in range(12):
            await world.job(f"backlog-{n}", RunAt(world.second(1)), priority=Priority.NORMAL)
        due_ms = world.second(100)
        await world.job("critical", RunAt(due_ms), priority=Priority.CRITICAL)
        await world.job("low", RunAt(due_ms), priority=Priority.LOW)
        worker = await world.worker().join()
        await give_all_back(worker)
        world.clock.advance(80_000)
        await worker.lease.run_once(world.now_ms)
        await give_all_back(worker)
        world.clock.advance(due_ms - world.now_ms)
        await worker.lease.run_once(world.now_ms)
        await worker.claim.run_once(world.now_ms)
        assert sorted(run.priority for run in worker.runs()) == [
            Priority.CRITICAL, Priority.NORMAL, Priority.NORMAL, Priority.LOW,
        ]  # fmt: skip

    run_world(shard_dsn, body)
