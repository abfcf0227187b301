"""Operators' brakes on the first shard: pulled, released, and asked for by every engine.

A brake stops within seconds what is about to be called. Pausing a tenant also pauses its jobs, one by one, so that
what they miss meanwhile is theirs to decide (`missed_runs`) once it is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from engine.model import JobState
from engine.rules.brakes import UNKNOWN, BrakeKind, InForce
from engine.rules.target_text import Target, read_target
from engine.store.admin import find_tenant
from engine.store.changes import Changed, Windows, pause_job, resume_job
from engine.store.jobs import JobRow, jobs_by_key
from engine.store.lists import JobFilter, job_names
from engine.store.shard import Shard

REREAD_MS = 1_000
# A release is told by those who saw the brake pulled and ask again within this.
TOLD_MS = 60_000

# What begins the note of a job that was paused with its tenant: resuming leaves alone what the tenant paused itself.
NOTE = "paused by the operator"
NOTE_CHARS_MAX = 255
JOBS_PER_PAGE = 500
JOBS_AT_ONCE = 4


class Brake(NamedTuple):
    """One use of a brake: pulled, and released if it is no longer in force."""

    brake_id: int
    kind: int
    what: str
    tenant_id: int | None
    note: str
    pulled_at_ms: int
    pulled_by: str
    released_at_ms: int | None
    released_by: str | None


class Brakes:
    """What is in force, as one process knows it. While the first shard is away, what was known stays."""

    def __init__(self, first: Shard) -> None:
        self._first = first
        self._pulled: dict[int, Brake] = {}
        self.in_force = UNKNOWN

    async def reread(self, now_ms: int) -> tuple[list[Brake], list[Brake]]:
        """Ask again. Returns those newly pulled and those released since."""
        answer = await self._first.execute("brakes_since", {"released_since": now_ms - TOLD_MS})
        rows = [Brake(*row) for row in answer.rows]
        pulled = {brake.brake_id: brake for brake in rows if brake.released_at_ms is None}
        began = [brake for number, brake in pulled.items() if number not in self._pulled]
        ended = [brake for brake in rows if brake.released_at_ms is not None and brake.brake_id in self._pulled]
        self._pulled, self.in_force = pulled, _in_force(list(pulled.values()))
        return began, ended


async def pull(first: Shard, kind: BrakeKind, what: str, who: str, note: str, tenant_id: int | None = None) -> Brake:
    """Pull a brake; one that is in force already stays as it is, and is returned."""
    key: dict[str, int | str] = {"kind": int(kind), "what": what}

    async def transaction() -> Brake:
        async with first.transaction() as connection:
            found = (await connection.execute("lock_brake", key)).rows
            if not found:
                now_ms = int((await connection.execute("shard_now")).rows[0][0])
                values = key | {"note": note, "now_ms": now_ms, "who": who}
                await connection.execute("pull_brake", values | {"tenant_id": tenant_id})
                found = (await connection.execute("lock_brake", key)).rows
            return Brake(*found[0])

    return await first.retrying(transaction)


async def release(first: Shard, kind: BrakeKind, what: str, who: str) -> bool:
    """Release a brake; False if it was not in force."""
    values: dict[str, int | str] = {"kind": int(kind), "what": what, "who": who, "now_ms": await first.now_ms()}
    return (await first.execute("release_brake", values)).found > 0


async def brakes_in_force(first: Shard) -> list[Brake]:
    """Those that are pulled now."""
    return [Brake(*row) for row in (await first.execute("brakes_in_force")).rows]


async def brakes_used(first: Shard, rows_max: int) -> list[Brake]:
    """Who pulled and released what, the last one first."""
    return [Brake(*row) for row in (await first.execute("brakes_used", {"rows_max": rows_max})).rows]


async def pause_tenant(shards: Sequence[Shard], name: str, who: str, note: str, windows: Windows) -> tuple[Brake, int]:
    """Stop a tenant's calls, then pause its active jobs; returns how many. Run again it goes on where it stopped."""
    tenant = await find_tenant(shards[0], name)
    brake = await pull(shards[0], BrakeKind.TENANT, name, who, note, tenant.tenant_id)
    text = (f"{NOTE}: {note}" if note else NOTE)[:NOTE_CHARS_MAX]

    async def pause(shard: Shard, job: JobRow) -> Changed | None:
        return await pause_job(shard, job, text, windows) if job.next_run_at_ms is not None else None

    jobs = [await _each_job(shard, tenant.tenant_id, JobState.ACTIVE, pause) for shard in shards]
    return brake, sum(jobs)


async def resume_tenant(shards: Sequence[Shard], name: str, who: str, windows: Windows) -> tuple[bool, int]:
    """Let a tenant's calls go on, and resume the jobs that were paused with it. Returns whether its brake was in force,
    and how many jobs."""
    tenant = await find_tenant(shards[0], name)
    was_in_force = await release(shards[0], BrakeKind.TENANT, name, who)

    async def resume(shard: Shard, job: JobRow) -> Changed | None:
        return await resume_job(shard, job, None, windows) if (job.note or "").startswith(NOTE) else None

    jobs = [await _each_job(shard, tenant.tenant_id, JobState.PAUSED, resume) for shard in shards]
    return was_in_force, sum(jobs)


async def _each_job(
    shard: Shard, tenant_id: int, state: JobState, act: Callable[[Shard, JobRow], Awaitable[Changed | None]]
) -> int:
    """Act on every job in a state, page by page; returns how many were changed."""
    after: str | None = ""
    changed = 0
    while after is not None:
        page = await job_names(shard, tenant_id, after, JobFilter(state), JOBS_PER_PAGE, 0)
        jobs = await jobs_by_key(shard, tenant_id, [(partition_id, job_id) for _, partition_id, job_id in page.names])
        for start in range(0, len(jobs), JOBS_AT_ONCE):
            done = await asyncio.gather(*(act(shard, job) for job in jobs[start : start + JOBS_AT_ONCE]))
            changed += sum(each is not None for each in done)
        after = page.read_to
    return changed


def _in_force(brakes: Sequence[Brake]) -> InForce:
    targets = [read_target(brake.what) for brake in brakes if brake.kind == BrakeKind.ORIGIN]
    return InForce(
        everything=any(brake.kind == BrakeKind.ALL for brake in brakes),
        tenants=frozenset(brake.tenant_id for brake in brakes if brake.tenant_id is not None),
        origins=frozenset(target.origin for target in targets if isinstance(target, Target)),
    )
