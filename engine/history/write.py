"""Writing finished runs: rows grouped by replica set into unlogged batches.

A prepared write by itself is bound by the client; fifty rows that go to the same nodes in one batch cost a third as
much, and nothing is atomic about them nor has to be: each row is the same whoever writes it and however often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra.query import UNSET_VALUE, BatchStatement, BatchType

from engine.history.session import CONSISTENCY, WRITE_TIMEOUT_S, HistorySession
from engine.history.times import month_of, write_time_us
from engine.rows import FinishedRun

BATCH_ROWS_MAX = 50
# Cassandra refuses batches over 50 KiB by default and warns of those over 5.
BATCH_BYTES_MAX = 32_768
# What a row takes beside its attempts, and an attempt beside its texts.
ROW_BYTES, ATTEMPT_BYTES = 150, 64
# Batches that are on their way at the same time.
IN_FLIGHT_MAX = 32


async def write_runs(session: HistorySession, runs: Sequence[FinishedRun], *, again: bool = False) -> None:
    """Returns once every row is acknowledged; HistoryUnavailable as soon as one is not. ``again``: over rows that stand
    there, of which nothing is to be left."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    sending: list[asyncio.Task[Any]] = []
    try:
        for rows in batches(session, runs, again=again):
            await room.acquire()
            task = asyncio.get_running_loop().create_task(session.send(_batch(session, rows), WRITE_TIMEOUT_S))
            task.add_done_callback(lambda _: room.release())
            sending.append(task)
        await asyncio.gather(*sending)
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def batches(session: HistorySession, runs: Sequence[FinishedRun], *, again: bool = False) -> Iterator[list[Any]]:
    """Bound rows of one replica set each, at most BATCH_ROWS_MAX and BATCH_BYTES_MAX; a larger row is alone."""
    open_batches: dict[frozenset[Any], tuple[list[Any], int]] = {}
    replicas, before = frozenset[Any](), None
    for run in sorted(runs, key=lambda each: (each.tenant_id, each.run.job_id, each.run.scheduled_at_ms)):
        bound = session.prepared("record_run").bind(_values(run, None if again else UNSET_VALUE))
        key = (run.tenant_id, run.run.job_id, month_of(run.run.scheduled_at_ms))
        if key != before:
            replicas, before = session.replicas(bound.routing_key), key
        rows, size = open_batches.get(replicas, ([], 0))
        row_bytes = _bytes(run)
        if rows and (len(rows) == BATCH_ROWS_MAX or size + row_bytes > BATCH_BYTES_MAX):
            yield rows
            rows, size = [], 0
        rows.append(bound)
        open_batches[replicas] = (rows, size + row_bytes)
    yield from (rows for rows, _ in open_batches.values())


def _batch(session: HistorySession, rows: Sequence[Any]) -> Any:
    """A single row goes by itself: it may be larger than a batch is allowed to be."""
    if len(rows) == 1:
        return rows[0]
    batch = BatchStatement(BatchType.UNLOGGED, consistency_level=CONSISTENCY["record_run"])
    for row in rows:
        batch.add(row)
    return batch


def _values(finished: FinishedRun, absent: object) -> tuple[object, ...]:
    """In the order of ``record_run``. An absent value is not set where nothing stands: a null would be stored as a
    deletion."""
    run = finished.run
    attempts = [tuple(attempt) for attempt in finished.attempts]
    return (
        finished.tenant_id,
        run.job_id,
        month_of(run.scheduled_at_ms),
        run.scheduled_at_ms,
        run.version,
        run.state,
        finished.priority,
        run.trigger,
        run.attempt,
        run.tries,
        *(
            absent if value is None else value
            for value in (run.reason, run.outcome, run.status_code, run.started_at_ms, run.finished_at_ms)
        ),
        run.demoted,
        attempts or absent,
        absent if finished.report is None else tuple(finished.report),
        write_time_us(run),
    )


def _bytes(finished: FinishedRun) -> int:
    report = len(finished.report.result or b"") + len(finished.report.note or "") if finished.report else 0
    if not finished.attempts:
        return ROW_BYTES + report
    texts = sum(len(each.detail or "") + len(each.answer or b"") + ATTEMPT_BYTES for each in finished.attempts)
    return ROW_BYTES + report + texts
