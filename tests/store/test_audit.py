"""Auditing a real shard: after any sequence of changes, what was planned is what the job's own versions say."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from engine.commands.audit import Audit, _audit_one
from engine.config import Dsn
from engine.model import Cron, Definition, JobState, RunAt, RunState
from engine.rules.audit import Wrong
from engine.store.audit import read_records
from engine.store.changes import Windows, delete_job, edit_job, pause_job, resume_job, start_run
from engine.store.jobs import JobRow, find_jobs
from tests.support.world import PARTITIONS, TARGET, TENANT, World, run_world

WINDOWS = Windows()
AHEAD_MS = 25_000  # within the horizon: planned, though it has not come


def told(result: Audit, job: JobRow) -> str:
    """What was wrong, beside the versions of the job."""
    findings = [(found.finding.wrong, found.finding.scheduled_at_ms) for found in result.listed]
    return "\n".join(map(str, [*findings, *result.listed[0].job.versions, job.next_run_at_ms, job.resume_at_ms]))


Change = Callable[[World, JobRow], Awaitable[object]]


async def audited(world: World) -> Audit:
    """From the start of the world up to what has been planned ahead."""
    result = Audit(world.now_ms - 60_000, world.now_ms + AHEAD_MS)
    for partition_id in range(PARTITIONS):
        async for page in read_records(world.shard, partition_id, result.from_ms, result.until_ms):
            for job in page:
                _audit_one(job, result, WINDOWS.freeze_ms)
    return result


def edit_to(schedule: Cron | RunAt | None, paused: bool | None = None) -> Change:
    async def edit(world: World, job: JobRow) -> object:
        was = Definition.decode(job.definition).schedule
        description = f"version {job.version + 1}"
        definition = Definition(schedule=schedule or was, target=TARGET, description=description)
        return await edit_job(world.shard, job, definition, paused, WINDOWS)

    return edit


CHANGES: list[Change] = [
    edit_to(None),
    edit_to(Cron("* * * * * *")),
    edit_to(Cron("*/3 * * * * *")),
    edit_to(Cron("*/2 * * * * *"), paused=True),
    edit_to(None, paused=True),
    edit_to(None, paused=False),
    edit_to(Cron("1-59/2 * * * * *"), paused=False),
    lambda world, job: edit_to(RunAt(world.second(7)))(world, job),
    lambda world, job: edit_to(RunAt(world.second(-9)), paused=False)(world, job),
    lambda world, job: pause_job(world.shard, job, None, WINDOWS),
    lambda world, job: resume_job(world.shard, job, None, WINDOWS),
    lambda world, job: start_run(world.shard, job, WINDOWS),
]


@pytest.mark.parametrize("seed", range(6))
def test_p2_after_any_changes_every_time_has_exactly_what_the_versions_say(shard_dsn: Dsn, seed: int) -> None:
    async def body(world: World) -> None:
        draw = random.Random(seed)
        await world.job("changed", Cron("* * * * * *"))
        worker = await world.worker().join()
        for _ in range(12):
            world.clock.wall_ms = await world.shard.now_ms()
            await worker.plan_all()
            job = (await find_jobs(world.shard, [(TENANT, "changed")]))[TENANT, "changed"]
            await draw.choice(CHANGES)(world, job)
            await worker.plan_all()
            result = await audited(world)
            assert result.flawless, told(result, job)
        job = (await find_jobs(world.shard, [(TENANT, "changed")]))[TENANT, "changed"]
        await delete_job(world.shard, job, WINDOWS)
        result = await audited(world)
        assert result.flawless, told(result, job)

    run_world(shard_dsn, body)


def test_p2_a_run_that_vanishes_is_missing_one_that_was_never_due_unexpected_and_a_withdrawn_one_neither(
    shard_dsn: Dsn,
) -> None:
    async def body(world: World) -> None:
        await world.job("broken", Cron("* * * * * *"))
        worker = await world.worker().join()
        await worker.plan_all()
        assert (await audited(world)).tally.open == AHEAD_MS // 1000
        await world.rows(f"DELETE FROM runs WHERE scheduled_at = {world.second(3)}")
        await world.rows(f"UPDATE runs SET scheduled_at = scheduled_at + 1 WHERE scheduled_at = {world.second(5)}")
        await world.rows(f"UPDATE runs SET state = {RunState.WITHDRAWN:d} WHERE scheduled_at = {world.second(9)}")
        result = await audited(world)
        assert result.wrong == {Wrong.MISSING: 3, Wrong.UNEXPECTED: 1}
        assert [found.job.name for found in result.listed] == ["broken"] * 4

    run_world(shard_dsn, body)


def test_a_job_whose_schedule_cannot_be_read_is_counted_and_stops_no_audit(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("broken", Cron("* * * * * *"))
        await world.rows("UPDATE job_versions SET definition = 'no JSON'")
        await world.job("sound", RunAt(world.second(2)))
        worker = await world.worker().join()
        await worker.plan_all()
        result = await audited(world)
        assert (result.jobs, result.invalid, result.flawless) == (2, 1, True)
        assert result.tally.undecided[JobState.ACTIVE] == 0

    run_world(shard_dsn, body)
