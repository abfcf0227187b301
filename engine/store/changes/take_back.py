"""What a worker gives up because a change told it to: its runs go where the change of their job wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.model import JobState, Reason, RunKey, RunState
from engine.rules.changes import HELD_UNTIL_MS, Deed, OpenRun, on_taken_back
from engine.store.changes.open_runs import end_rows, fences, open_run, replaced_among, withdraw_rows
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import time_bounds


async def take_back(shard: Shard, worker_id: int, runs: Sequence[tuple[RunKey, int]], now_ms: int) -> int:
    """For a worker that was told WITHDRAWN of runs (key, attempt) which it has not started and will not start: they go
    where the change of their job wants them. What is no longer its own is left alone; returns how many were."""

    async def transaction() -> int:
        async with shard.transaction() as connection:
            jobs = sorted({(key.partition_id, key.job_id) for key, _ in runs})
            rows = await connection.fetch_rows("lock_job_states", jobs, bytes_max=shard.packet_bytes_max)
            states = {(row[0], row[1]): JobState(row[2]) for row in rows}
            mine = await _lock_unstarted(connection, worker_id, runs, shard.packet_bytes_max)
            versions = {(row[0], row[1]): row[3] for row in rows}
            replaced = await replaced_among(connection, mine, versions, shard.packet_bytes_max)
            deeds = {
                run: on_taken_back(run, states[run.partition_id, run.job_id], now_ms, run in replaced) for run in mine
            }
            await _put_back(connection, deeds, states, now_ms, shard.packet_bytes_max)
            return len(mine)

    return await shard.retrying(transaction) if runs else 0


async def _lock_unstarted(
    connection: Connection, worker_id: int, runs: Sequence[tuple[RunKey, int]], bytes_max: int
) -> list[OpenRun]:
    keys = sorted((*key, attempt) for key, attempt in runs)
    values = {**time_bounds(keys), "worker_id": worker_id}
    rows = await connection.fetch_rows("lock_unstarted_runs", keys, values, bytes_max=bytes_max)
    return [open_run(row) for row in rows]


async def _put_back(
    connection: Connection,
    deeds: Mapping[OpenRun, Deed],
    states: Mapping[tuple[int, int], JobState],
    now_ms: int,
    bytes_max: int,
) -> None:
    withdrawn = [run for run, deed in deeds.items() if deed is Deed.WITHDRAW]
    if withdrawn:
        await withdraw_rows(connection, withdrawn, bytes_max)
        earlier = sorted((run.partition_id, run.job_id, run.scheduled_at_ms) for run in withdrawn)
        await connection.execute_rows("resume_earlier", earlier, bytes_max=bytes_max)
    for reason, paused in ((Reason.PAUSED, True), (Reason.DELETED, False)):
        ended = [
            run
            for run, deed in deeds.items()
            if deed is Deed.SKIP and paused == (states[run.partition_id, run.job_id] == JobState.PAUSED)
        ]
        if ended:
            await end_rows(connection, ended, RunState.SKIPPED, reason, now_ms, bytes_max)
    waiting = [run for run, deed in deeds.items() if deed in (Deed.HOLD, Deed.STAND)]
    if waiting:
        await connection.execute_rows("let_runs_wait", fences(waiting), time_bounds(waiting), bytes_max=bytes_max)
        due = [(*run[:3], *_due_again(run, deeds[run], now_ms), run.priority, run.tenant_id) for run in waiting]
        await connection.execute_rows("insert_deferred", sorted(due), bytes_max=bytes_max)


def _due_again(run: OpenRun, deed: Deed, now_ms: int) -> tuple[int, Reason]:
    if deed is Deed.HOLD:
        return HELD_UNTIL_MS, Reason.HELD
    return max(now_ms, run.scheduled_at_ms), Reason.GIVEN_BACK
