"""What a change tells those who hold its runs, and the wait until they have obeyed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from engine.model import SignalKind, is_door
from engine.rules.changes import OpenRun
from engine.store.connection import Connection
from engine.store.shard import Shard

# How long an answer waits for those who hold a changed run to obey.
OBEY_WAIT_MS = 1_000

OBEY_POLL_MS = 50


class Signalled(NamedTuple):
    """A range of signals that were written; empty where ``last_id`` is below ``first_id``."""

    first_id: int
    last_id: int


NOBODY = Signalled(0, -1)


async def insert_signals(
    connection: Connection, kind: SignalKind, runs: Iterable[OpenRun], now_ms: int, bytes_max: int
) -> Signalled:
    """Tell the holder of each run, in the transaction of the change. A door reads no signals."""
    rows = [
        (run.worker_id, kind, run.partition_id, run.scheduled_at_ms, run.job_id, run.attempt, now_ms)
        for run in runs
        if not is_door(run.worker_id)
    ]
    if not rows:
        return NOBODY
    await connection.execute_rows("insert_signals", rows, bytes_max=bytes_max)
    first_id = int((await connection.execute("last_insert_id")).rows[0][0])
    return Signalled(first_id, first_id + len(rows) - 1)


async def wait_obeyed(shard: Shard, signalled: Signalled) -> bool:
    """Until every holder has obeyed, for at most OBEY_WAIT_MS; False if one has not (it may be dead)."""
    if signalled.last_id < signalled.first_id:
        return True
    for _ in range(OBEY_WAIT_MS // OBEY_POLL_MS):
        answer = await shard.execute("signals_left", signalled._asdict())
        if answer.rows[0][0] == 0:
            return True
        await asyncio.sleep(OBEY_POLL_MS / 1000)
    return False
