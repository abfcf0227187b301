"""Tidy: what has had its time is removed, in small batches: idempotency keys, dead letters, ended jobs.

A finished job goes ``keep_finished`` after its last run, a deleted one when its history is gone; versions, labels and
skips go with it. Runs go with their day; those that were retried after it had gone are removed here, once they have
been there for as long again; with history in Cassandra, once they are recorded again.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Settings
from engine.events import Events
from engine.model import Definition
from engine.stages.days import DAY_MS
from engine.store.connection import Connection, Row
from engine.store.ended import delete_ended
from engine.store.requests import delete_old_requests
from engine.store.shard import Shard
from engine.store.statements import Value

ROWS_PER_BATCH = 500
DEAD_LETTERS_KEPT_MS = 14 * DAY_MS


class Tidy:
    """Removes what has had its time from one shard."""

    def __init__(self, shard: Shard, all_partitions: Sequence[int], settings: Settings, events: Events) -> None:
        self._shard = shard
        self._all_partitions = all_partitions
        self._settings = settings
        self._events = events

    async def run_once(self, now_ms: int) -> bool:
        """One batch of each kind; True if there may be more."""
        now_ms = await self._shard.now_ms()
        requests = await delete_old_requests(self._shard, now_ms, ROWS_PER_BATCH)
        letters = await self._delete_letters(now_ms - DEAD_LETTERS_KEPT_MS)
        jobs = await self._delete_jobs(now_ms - self._settings.retention_days * DAY_MS)
        runs = await self._delete_retried(now_ms - self._settings.mysql_days * DAY_MS)
        if requests or letters or jobs or runs:
            self._events.emit("rows.tidied", requests=requests, dead_letters=letters, jobs=jobs, runs=runs)
        return ROWS_PER_BATCH in (requests, letters, jobs, runs)

    async def _delete_letters(self, before_ms: int) -> int:
        values = {"before_at": before_ms, "rows_max": ROWS_PER_BATCH}
        return (await self._shard.execute("delete_old_dead_letters", values)).found

    async def _delete_jobs(self, before_ms: int) -> int:
        """Ended jobs, each under its row's lock, so that none is edited back to life meanwhile."""
        bytes_max = self._shard.packet_bytes_max
        async with self._shard.transaction() as connection:
            answer = await connection.execute(
                "lock_ended_jobs",
                {"partitions": self._all_partitions, "before_at": before_ms, "rows_max": ROWS_PER_BATCH},
            )
            jobs = sorted(answer.rows)
            if jobs:
                await self._delete_labels(connection, jobs)
                for name in ("delete_skips_of_jobs", "delete_versions_of_jobs", "delete_jobs"):
                    await connection.execute_rows(name, [job[:2] for job in jobs], bytes_max=bytes_max)
        return len(jobs)

    async def _delete_retried(self, before_ms: int) -> int:
        gone_ms = int((await self._shard.execute("gone_days")).rows[0][0])
        values: dict[str, Value] = {
            "partitions": self._all_partitions,
            "gone_to": gone_ms,
            "ended_before": 0 if self._settings.history == "cassandra" else before_ms,
            "rows_max": ROWS_PER_BATCH,
        }
        rows = (await self._shard.execute("ended_of_gone_days", values)).rows
        return await delete_ended(self._shard, [(row[0], row[1], row[2], row[3]) for row in rows]) if rows else 0

    async def _delete_labels(self, connection: Connection, jobs: Sequence[Row]) -> None:
        """By their exact keys, which the jobs' definitions tell."""
        bytes_max = self._shard.packet_bytes_max
        versions = await connection.fetch_rows("read_versions", [job[:3] for job in jobs], bytes_max=bytes_max)
        owners = {(job[0], job[1]): (job[3], job[4]) for job in jobs}
        labels = []
        for partition_id, job_id, _, stored in versions:
            tenant_id, name = owners[partition_id, job_id]
            labels += [(tenant_id, label, value, name) for label, value in Definition.salvage(stored).labels]
        if labels:
            await connection.execute_rows("delete_labels", sorted(labels), bytes_max=bytes_max)
