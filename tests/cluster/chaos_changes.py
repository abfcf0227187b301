"""What is done to jobs while faults go on; each by itself, as an API would, and none if its job is not there."""

from __future__ import annotations

from collections.abc import Callable

from engine.model import Cron, Definition, HttpTarget
from engine.store.changes import Windows, delete_job, edit_job, pause_job, resume_job
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from engine.store.shard import Shard


async def changed(shard: Shard, name: tuple[int, str], change: Callable[[Shard, JobRow | None], object]) -> None:
    try:
        await change(shard, (await find_jobs(shard, [name])).get(name))  # type: ignore[misc]
    finally:
        await shard.close()


async def delete(shard: Shard, job: JobRow | None) -> object:
    return None if job is None else await delete_job(shard, job, Windows())


async def put(shard: Shard, job: JobRow | None, new: NewJob, seconds: int) -> object:
    return None if job is not None else await create_jobs(shard, [new])


async def edit(shard: Shard, job: JobRow | None, new: NewJob, seconds: int) -> object:
    if job is None:
        return None
    was = Definition.decode(job.definition)
    assert isinstance(was.schedule, Cron)
    assert isinstance(was.target, HttpTarget)
    schedule = Cron(f"*/{seconds} * * * * *", start_at_ms=was.schedule.start_at_ms, end_at_ms=was.schedule.end_at_ms)
    definition = Definition(schedule, was.target, overlap=was.overlap, retry=was.retry)
    return await edit_job(shard, job, definition, None, Windows())


async def pause_or_resume(shard: Shard, job: JobRow | None, new: NewJob, seconds: int) -> object:
    if job is None:
        return None
    if job.next_run_at_ms is None and job.resume_at_ms is not None:
        return await resume_job(shard, job, None, Windows())
    return await pause_job(shard, job, None, Windows())
