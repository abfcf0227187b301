"""What an audit reads of Cassandra: the outcomes of runs whose days have left MySQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from engine.model import RunState, Trigger
from engine.rows import RunRow
from engine.rules.audit import Outcome
from engine.store.audit import JobRecord

# Runs of one answer, and jobs that are asked for at the same time.
ROWS_MAX = 5_000
JOBS_AT_ONCE = 32


class PastRuns(Protocol):
    """Where runs are that have left."""

    def kept_from_ms(self, now_ms: int) -> int: ...

    async def list_runs(
        self, tenant_id: int, job_id: int, from_ms: int, to_ms: int, rows_max: int
    ) -> list[RunRow]: ...


async def add_past(history: PastRuns, jobs: Iterable[JobRecord], from_ms: int, to_ms: int) -> None:
    """Give each job its outcomes in [from, to], but for those that MySQL has: one that was retried is newer there.

    A job that is removed has nothing left, nor is its tenant known.
    """
    room = asyncio.Semaphore(JOBS_AT_ONCE)

    async def add(job: JobRecord, tenant_id: int) -> None:
        async with room:
            await _add(history, job, tenant_id, from_ms, to_ms)

    await asyncio.gather(*(add(job, job.tenant_id) for job in jobs if job.tenant_id is not None))


async def _add(history: PastRuns, job: JobRecord, tenant_id: int, from_ms: int, to_ms: int) -> None:
    while from_ms <= to_ms:
        runs = await history.list_runs(tenant_id, job.job_id, from_ms, to_ms, ROWS_MAX)
        for run in runs:
            at_ms = run.scheduled_at_ms
            past = Outcome(at_ms, run.version, RunState(run.state), Trigger(run.trigger), run.started_at_ms)
            job.runs.setdefault(at_ms, past)
        if len(runs) < ROWS_MAX:
            break
        to_ms = runs[-1].scheduled_at_ms - 1
