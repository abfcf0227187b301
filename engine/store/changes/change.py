"""One change of one job: its transaction under the job's row lock, what it sees, and how it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import Misplaced
from engine.model import Definition, JobState, SignalKind, VersionEvent
from engine.rules.changes import OpenRun
from engine.store.changes.signals import NOBODY, Signalled, insert_signals
from engine.store.connection import Connection
from engine.store.jobs import JobRow, job_row, label_rows, version_row
from engine.store.shard import Shard


class Windows(NamedTuple):
    """The settings that decide how far a change reaches."""

    freeze_ms: int = 30_000
    missed_after_ms: int = 300_000


@dataclass(slots=True)
class Change:
    """One transaction's view of a locked job, and what it is going to be."""

    connection: Connection
    bytes_max: int
    windows: Windows
    was: JobRow
    definition: Definition
    now_ms: int
    mark_at_ms: int
    floor_at_ms: int
    job: JobRow
    planned_version: int
    told: list[OpenRun] = field(default_factory=list)

    def become(self, **fields: object) -> None:
        self.job = self.job._replace(**fields)  # type: ignore[arg-type]

    @property
    def key(self) -> dict[str, int]:
        return {"partition_id": self.was.partition_id, "job_id": self.was.job_id}


class Changed(NamedTuple):
    """A job after a change: the first run that fires with it, and who has to be waited for."""

    job: JobRow
    effective_from_ms: int | None
    signalled: Signalled = NOBODY


@asynccontextmanager
async def locked(shard: Shard, job: JobRow, windows: Windows) -> AsyncIterator[Change | None]:
    """A transaction that holds placement, mark and floor FOR SHARE, then the job; None if the job is gone."""
    async with shard.transaction() as connection:
        shared = (await connection.execute("share_planning_rows", {"partitions": [job.partition_id]})).rows
        if not shared:
            raise Misplaced([job.partition_id])
        key = {"partition_id": job.partition_id, "job_id": job.job_id}
        rows = (await connection.execute("lock_job", key)).rows
        if not rows:
            yield None
            return
        locked, now_ms = job_row(rows[0], shard.keys), int(rows[0][13])
        yield Change(
            connection=connection,
            bytes_max=shard.packet_bytes_max,
            windows=windows,
            was=locked,
            definition=Definition.salvage(locked.definition),
            now_ms=now_ms,
            mark_at_ms=shared[0][1],
            floor_at_ms=shared[0][2],
            job=locked,
            planned_version=locked.version,
        )


async def write(change: Change, event: VersionEvent) -> Changed:
    """The job's row, its new version and the signals: the end of every change."""
    change.become(version=change.was.version + 1, updated_at_ms=change.now_ms)
    job = change.job
    await change.connection.execute(
        "update_job",
        {
            "partition_id": job.partition_id,
            "job_id": job.job_id,
            "alive": None if job.state == JobState.DELETED else 1,
            "state": job.state,
            "version": job.version,
            "priority": change.definition.priority,
            "overlap": change.definition.overlap,
            "next_run_at": job.next_run_at_ms,
            "resume_at": job.resume_at_ms,
            "last_run_at": job.last_run_at_ms,
            "updated_at": job.updated_at_ms,
            "note": job.note,
        },
    )
    version = version_row(job, event, change.connection.keys)
    await change.connection.execute_rows("insert_versions", [version], bytes_max=change.bytes_max)
    signalled = await insert_signals(
        change.connection, SignalKind.WITHDRAWN, change.told, change.now_ms, change.bytes_max
    )
    return Changed(job, job.next_run_at_ms, signalled)


async def delete_labels(change: Change) -> None:
    """The job is found by none of its labels any more."""
    keys = sorted(row[:4] for row in label_rows(change.job, change.definition))
    if keys:
        await change.connection.execute_rows("delete_labels", keys, bytes_max=change.bytes_max)
