"""The open runs of a job that a change reaches: found, withdrawn, held, ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from engine.errors import Conflict
from engine.model import Definition, Reason, RunState, Trigger
from engine.rules.changes import HELD_UNTIL_MS, OpenRun
from engine.store.changes.change import Change
from engine.store.connection import Connection, Row
from engine.store.statements import time_bounds


async def open_runs(change: Change) -> list[OpenRun]:
    """Every open run of the job: from the mark up by the runs themselves, below it by their rows in deferred."""
    from_ms = min(change.mark_at_ms, change.now_ms)
    to_ms = max(change.was.last_run_at_ms or 0, change.now_ms + 1_000)
    runs = await open_runs_between(change, from_ms, to_ms)
    answer = await change.connection.execute("deferred_of_job", change.key)
    below = [row[0] for row in answer.rows if row[0] < from_ms]
    if below:
        rows = [(change.was.partition_id, at_ms, change.was.job_id) for at_ms in below]
        found = await change.connection.fetch_rows(
            "lock_open_runs_by_key", rows, {"from_at": below[0], "to_at": below[-1]}, bytes_max=change.bytes_max
        )
        runs += map(open_run, found)
    return runs


async def open_runs_between(change: Change, from_ms: int, to_ms: int) -> list[OpenRun]:
    """Those scheduled between two times, both inclusive, locked."""
    answer = await change.connection.execute("lock_open_runs_of_job", change.key | {"from_at": from_ms, "to_at": to_ms})
    return [open_run(row) for row in answer.rows]


def open_run(row: Row) -> OpenRun:
    """A row of ``lock_open_runs_of_job`` or ``lock_run``."""
    partition_id, scheduled_at, job_id, state, attempt, tries, worker_id, trigger, version, *rest = row
    return OpenRun(
        partition_id, scheduled_at, job_id, RunState(state), attempt, tries, worker_id, Trigger(trigger), version,
        *rest,
    )  # fmt: skip


async def replaced_among(
    connection: Connection, runs: Sequence[OpenRun], current: Mapping[tuple[int, int], int], bytes_max: int
) -> set[OpenRun]:
    """Those runs whose job has been given another schedule since they were planned; ``current``: the version of each
    job. One that has got its old schedule back counts: what that plans begins after these runs."""
    oldest: dict[tuple[int, int], int] = {}
    for run in runs:
        job = run.partition_id, run.job_id
        oldest[job] = min(run.version, oldest.get(job, run.version))
    keys = [(*job, version) for job in sorted(oldest) for version in range(oldest[job], current[job] + 1)]
    if len(keys) == len(oldest):
        return set()
    rows = await connection.fetch_rows("read_versions", keys, bytes_max=bytes_max)
    schedules = {(row[0], row[1], row[2]): Definition.salvage(row[3]).schedule for row in rows}
    since = dict(oldest)
    for was, key in pairwise(sorted(schedules)):
        if was[:2] == key[:2] and schedules[was] != schedules[key]:
            since[key[0], key[1]] = key[2]
    return {run for run in runs if run.version < since[run.partition_id, run.job_id]}


async def withdraw(change: Change, runs: Sequence[OpenRun]) -> None:
    """Take runs back, and tell their holders."""
    if not runs:
        return
    await withdraw_rows(change.connection, runs, change.bytes_max)
    change.told += [run for run in runs if run.worker_id is not None]


async def withdraw_rows(connection: Connection, runs: Sequence[OpenRun], bytes_max: int) -> None:
    found = await connection.execute_rows("withdraw_runs", fences(runs), time_bounds(runs), bytes_max=bytes_max)
    if found != len(runs):
        raise Conflict(f"withdrew {found} of {len(runs)} runs")
    await _forget(connection, runs, bytes_max)


async def hold(change: Change, runs: Sequence[OpenRun]) -> None:
    """Their rows in deferred become due at no time that comes."""
    if runs:
        rows = sorted((*run[:3], HELD_UNTIL_MS, Reason.HELD, run.priority, run.tenant_id) for run in runs)
        await change.connection.execute_rows("insert_deferred", rows, bytes_max=change.bytes_max)


async def end_runs(change: Change, runs: Sequence[OpenRun], state: RunState, reason: Reason) -> None:
    """End runs that were still open; Conflict if one is not."""
    if runs:
        await end_rows(change.connection, runs, state, reason, change.now_ms, change.bytes_max)


async def end_rows(
    connection: Connection,
    runs: Sequence[OpenRun],
    state: RunState,
    reason: Reason | None,
    now_ms: int,
    bytes_max: int,
) -> None:
    values = time_bounds(runs) | {"state": state, "reason": reason, "now_ms": now_ms}
    found = await connection.execute_rows("end_open_runs", fences(runs), values, bytes_max=bytes_max)
    if found != len(runs):
        raise Conflict(f"ended {found} of {len(runs)} runs")
    await _forget(connection, runs, bytes_max)


async def _forget(connection: Connection, runs: Sequence[OpenRun], bytes_max: int) -> None:
    """Runs that are no longer open have no row in deferred, nor do they keep others from running."""
    keys = sorted(run[:3] for run in runs)
    await connection.execute_rows("delete_deferred", keys, bytes_max=bytes_max)
    await connection.execute_rows("delete_active", keys, bytes_max=bytes_max)


def fences(runs: Iterable[OpenRun]) -> list[tuple[int, int, int, int]]:
    """What a write names each run by: nothing changes where its attempt has moved on."""
    return sorted((run.partition_id, run.scheduled_at_ms, run.job_id, run.attempt) for run in runs)
