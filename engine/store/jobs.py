"""Jobs as tenants write and read them: finding, creating, listing. Changing one is engine/store/changes/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine import zones
from engine.errors import Misplaced
from engine.keys import Keys
from engine.model import Cron, Definition, JobState, RunAt, VersionEvent, mint_job_id
from engine.rules import schedule as schedules
from engine.store.connection import Connection, Row
from engine.store.requests import Finish, do_nothing
from engine.store.sealed import open_definition, seal_definition
from engine.store.shard import Shard


class JobRow(NamedTuple):
    """A living job with its current definition, still encoded. Times are milliseconds."""

    tenant_id: int
    name: str
    partition_id: int
    job_id: int
    state: JobState
    version: int
    next_run_at_ms: int | None
    resume_at_ms: int | None
    last_run_at_ms: int | None
    created_at_ms: int
    updated_at_ms: int
    note: str | None
    definition: bytes


class NewJob(NamedTuple):
    """A job to be created; its id and times are set when it is."""

    tenant_id: int
    name: str
    partition_id: int
    definition: Definition
    paused: bool


async def find_jobs(shard: Shard, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRow]:
    """The living jobs among these (tenant_id, name) of one shard."""
    wanted = sorted((tenant_id, 1, name) for tenant_id, name in names)
    async with shard.connection() as connection:
        rows = await connection.fetch_rows("find_jobs", wanted, bytes_max=shard.packet_bytes_max)
    return {(row[0], row[1]): job_row(row, shard.keys) for row in rows}


async def create_jobs(shard: Shard, jobs: Sequence[NewJob], finish: Finish[list[JobRow]] = do_nothing) -> list[JobRow]:
    """Create all of these in one transaction, in the order given.

    Duplicate if one of the names is taken: then nothing is created. Misplaced if the shard does not hold a partition.
    """

    async def transaction() -> list[JobRow]:
        async with shard.transaction() as connection:
            rows = await create_jobs_in(connection, jobs, shard.packet_bytes_max)
            await finish(connection, rows)
            return rows

    return await shard.retrying(transaction)


async def create_jobs_in(connection: Connection, jobs: Sequence[NewJob], bytes_max: int) -> list[JobRow]:
    """The same within a transaction that the caller has begun."""
    now_ms = await _share_placement(connection, {job.partition_id for job in jobs})
    rows = [_created(job, now_ms) for job in jobs]
    await _insert(connection, jobs, rows, bytes_max)
    return rows


async def jobs_by_key(shard: Shard, tenant_id: int, keys: Sequence[tuple[int, int]]) -> list[JobRow]:
    """Living jobs by (partition_id, job_id), in no order."""
    async with shard.connection() as connection:
        rows = await connection.fetch_rows(
            "jobs_by_key", sorted(keys), {"tenant_id": tenant_id}, bytes_max=shard.packet_bytes_max
        )
    return [job_row(row, shard.keys) for row in rows]


def job_row(row: Row, keys: Keys) -> JobRow:
    """A row of ``find_jobs`` or a statement with the same columns first; its secrets are opened."""
    tenant_id, name, partition_id, job_id, state, *rest, stored = row[:13]
    rest.append(open_definition(stored, job_id, keys))
    return JobRow(tenant_id, name, partition_id, job_id, JobState(state), *rest)


def first_run_at(schedule: RunAt | Cron, now_ms: int) -> int | None:
    """The first time of a schedule that begins now; a single time stands even if just past: it is called at once."""
    return schedule.run_at_ms if isinstance(schedule, RunAt) else schedules.next_time(schedule, now_ms)


async def _share_placement(connection: Connection, partitions: set[int]) -> int:
    """Hold the partitions where they are until COMMIT; returns the shard's time."""
    answer = await connection.execute("share_placement_with_time", {"partitions": sorted(partitions)})
    if len(answer.rows) != len(partitions):
        raise Misplaced(sorted(partitions - {row[0] for row in answer.rows}))
    return int(answer.rows[0][1])


def _created(job: NewJob, now_ms: int) -> JobRow:
    first_ms = first_run_at(job.definition.schedule, now_ms)
    return JobRow(
        tenant_id=job.tenant_id,
        name=job.name,
        partition_id=job.partition_id,
        job_id=mint_job_id(now_ms, job.partition_id),
        state=JobState.PAUSED if job.paused else JobState.ACTIVE,
        version=1,
        next_run_at_ms=None if job.paused else first_ms,
        resume_at_ms=first_ms if job.paused else None,
        last_run_at_ms=None,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        note=None,
        definition=job.definition.encode(),
    )


async def _insert(connection: Connection, jobs: Sequence[NewJob], rows: Sequence[JobRow], bytes_max: int) -> None:
    by_key = sorted(zip(rows, jobs, strict=True), key=lambda pair: (pair[0].partition_id, pair[0].job_id))
    job_rows = [
        (row.partition_id, row.job_id, row.tenant_id, row.name, 1, row.state, 1, job.definition.priority,
         job.definition.overlap, row.next_run_at_ms, row.resume_at_ms, row.created_at_ms, row.created_at_ms)
        for row, job in by_key
    ]  # fmt: skip
    await connection.execute_rows("insert_jobs", job_rows, bytes_max=bytes_max)
    versions = [version_row(row, VersionEvent.CREATED, connection.keys) for row, _ in by_key]
    await connection.execute_rows("insert_versions", versions, bytes_max=bytes_max)
    labels = sorted(label for row, job in by_key for label in label_rows(row, job.definition))
    if labels:
        await connection.execute_rows("insert_labels", labels, bytes_max=bytes_max)


def version_row(row: JobRow, event: VersionEvent, keys: Keys) -> tuple[object, ...]:
    """The immutable copy of a job as it stands after a change, its secrets sealed."""
    stored = seal_definition(row.definition, row.job_id, keys)
    return (
        row.partition_id, row.job_id, row.version, event, row.state, row.updated_at_ms, row.next_run_at_ms,
        zones.TZDATA_VERSION, *stored,
    )  # fmt: skip


def label_rows(row: JobRow, definition: Definition) -> list[tuple[object, ...]]:
    """Rows of job_labels, which filters go through."""
    return [(row.tenant_id, key, value, row.name, row.partition_id, row.job_id) for key, value in definition.labels]
