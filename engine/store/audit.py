"""What an audit reads of one shard: jobs with their versions, runs and skipped ranges, page by page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson

from engine.model import JobState, Reason, RunState, Trigger, decode_schedule
from engine.rules.audit import Cursor, Outcome, SkippedRange, Version
from engine.store.connection import Connection, Row
from engine.store.shard import Shard
from engine.store.statements import Value

# A job is some 2 KB here, its runs of the period not counted.
JOBS_PER_PAGE = 5_000
# One page may scan a partition's runs of a long period.
TIMEOUT_MS = 120_000


@dataclass(slots=True)
class JobRecord:
    """All that is known of a job in a period. ``readable`` is False where a version's schedule cannot be decoded."""

    job_id: int
    tenant_id: int | None = None
    name: str | None = None
    cursor: Cursor | None = None
    versions: list[Version] = field(default_factory=list)
    runs: dict[int, Outcome] = field(default_factory=dict)
    skips: list[SkippedRange] = field(default_factory=list)
    readable: bool = True


async def read_floor(shard: Shard) -> int:
    """Nothing is kept below it, milliseconds."""
    return int((await shard.execute("audit_floor")).rows[0][0])


async def read_gone(shard: Shard) -> int:
    """Below it all days have gone, milliseconds; what was retried since stands there."""
    return int((await shard.execute("gone_days")).rows[0][0])


async def read_records(shard: Shard, partition_id: int, from_ms: int, to_ms: int) -> AsyncIterator[list[JobRecord]]:
    """Every job that a partition ever had, a page at a time, each page of one moment."""
    after_id = 0
    while True:
        async with shard.connection() as connection:
            await connection.execute("audit_snapshot")
            connection.begin()
            values: dict[str, Value] = {"partition_id": partition_id, "after_id": after_id}
            last = await connection.execute("audit_last_job", values | {"rows_max": JOBS_PER_PAGE}, TIMEOUT_MS)
            last_id = last.rows[0][0]
            period: dict[str, Value] = {"from_at": from_ms, "to_at": to_ms}
            page = await _read_page(connection, values | {"last_id": last_id} | period) if last_id else []
            await connection.commit()
        if not page:
            return
        yield page
        after_id = last_id


async def _read_page(connection: Connection, values: dict[str, Value]) -> list[JobRecord]:
    records: dict[int, JobRecord] = {}
    for row in await _rows(connection, "audit_versions", values):
        _add_version(records.setdefault(row[0], JobRecord(row[0])), row)
    for job_id, tenant_id, name, state, next_run_at, resume_at in await _rows(connection, "audit_jobs", values):
        record = records.setdefault(job_id, JobRecord(job_id))
        record.tenant_id, record.name = tenant_id, name
        record.cursor = Cursor(JobState(state), next_run_at if state == JobState.ACTIVE else resume_at)
    runs: defaultdict[int, dict[int, Outcome]] = defaultdict(dict)
    for statement in ("audit_dead_letters", "audit_runs"):
        for job_id, at_ms, version, state, trigger, started_at in await _rows(connection, statement, values):
            runs[job_id][at_ms] = Outcome(at_ms, version, RunState(state), Trigger(trigger), started_at)
    for job_id, found in runs.items():
        records.setdefault(job_id, JobRecord(job_id)).runs = found
    for job_id, from_at, to_at, version, reason in await _rows(connection, "audit_skips", values):
        skip = SkippedRange(from_at, to_at, version, Reason(reason))
        records.setdefault(job_id, JobRecord(job_id)).skips.append(skip)
    return list(records.values())


def _add_version(record: JobRecord, row: Row) -> None:
    _, version, state, written_at, next_run_at, schedule = row
    try:
        decoded = decode_schedule(orjson.loads(schedule))
    except (TypeError, ValueError, KeyError):  # a row that nobody can read is told, and stops no audit
        record.readable = False
        return
    record.versions.append(Version(version, JobState(state), written_at, next_run_at, decoded))


async def _rows(connection: Connection, name: str, values: dict[str, Value]) -> list[Row]:
    return list((await connection.execute(name, values, TIMEOUT_MS)).rows)
