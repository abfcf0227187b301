"""Changes of a job as the tests make them, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.model import (
    Cron,
    Definition,
    MissedRuns,
    OutcomeKind,
    Reason,
    RunAt,
    RunState,
)
from engine.outbound.exchange import Outcome
from engine.store.changes import (
    Changed,
    Windows,
    delete_job,
    edit_job,
    pause_job,
    resume_job,
    take_back,
)
from engine.store.jobs import JobRow, find_jobs
from tests.support.world import TENANT, Worker, World

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


async def in_flight(world: World, name: str, **settings: Any) -> Worker:
    """A worker that holds the job's one run, which is due."""
    await world.job(name, RunAt(world.second(0)), **settings)
    worker = await world.worker().join()
    await worker.plan_all()
    if not worker.runs():
        await worker.claim.run_once(world.now_ms)
    return worker


async def ended(world: World, worker: Worker, status: int) -> None:
    """Its run is answered so, and settled."""
    worker.settle.settled(worker.runs()[0], answered(world, status))
    await worker.settle.run_once(world.now_ms)


async def between_retries(world: World, name: str, **settings: Any) -> Worker:
    """A worker whose run of the job failed a moment ago and waits for its second try."""
    worker = await in_flight(world, name, **settings)
    await ended(world, worker, 500)
    assert [run[1] for run in await runs(world)] == [RunState.WAITING]
    return worker
