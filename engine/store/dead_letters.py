"""Dead letters: pages of one shard's, and their retry and deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.model import Reason, RunKey
from engine.rows import RunRow
from engine.rules.changes import OpenRun
from engine.store.changes import open_run
from engine.store.connection import Connection
from engine.store.lists import AFTER_EVERY_NAME, ROWS_READ_MAX
from engine.store.requests import Finish, do_nothing
from engine.store.rollups import note_recounts
from engine.store.shard import Shard
from engine.store.statements import Value, time_bounds

# Above every key, and later than every time.
_KEY_MAX = (1 << 63) - 1


class Position(NamedTuple):
    """A dead letter's place in the list, newest first."""

    died_at_ms: int
    partition_id: int
    scheduled_at_ms: int
    job_id: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)


NEWEST = Position(_KEY_MAX, 65_535, _KEY_MAX, _KEY_MAX)


class DeadLetterFilter(NamedTuple):
    """What a list of dead letters is narrowed to; all that is given must hold."""

    name: str | None = None
    name_prefix: str = ""
    scheduled_from_ms: int | None = None
    scheduled_to_ms: int | None = None


class DeadLetter(NamedTuple):
    """A dead letter: where it stands, its job's name, and the run as it failed."""

    position: Position
    name: str
    run: RunRow


class DeadLetterPage(NamedTuple):
    """The newest first; ``read_to`` is set where the shard has read enough: what is older is not known."""

    letters: list[DeadLetter]
    read_to: Position | None


async def dead_letters(
    shard: Shard, tenant_id: int, after: Position, wanted: DeadLetterFilter, rows_max: int
) -> DeadLetterPage:
    """At most ``rows_max`` dead letters of one shard older than a position."""
    scan_max = rows_max if wanted == DeadLetterFilter() else max(rows_max, ROWS_READ_MAX)
    values: dict[str, Value] = {
        "tenant_id": tenant_id,
        "died_to": after.died_at_ms,
        "partition_id": after.partition_id,
        "scheduled_at": after.scheduled_at_ms,
        "job_id": after.job_id,
        "name": wanted.name,
        "from_name": wanted.name_prefix,
        "to_name": wanted.name_prefix + AFTER_EVERY_NAME,
        "from_at": wanted.scheduled_from_ms,
        "to_at": wanted.scheduled_to_ms,
        "scan_max": scan_max,
        "rows_max": rows_max,
        "skipped": scan_max - 1,
    }
    async with shard.connection() as connection:
        answer = await connection.execute("dead_letters_page", values)
        letters = [_dead_letter(row) for row in answer.rows]
        if len(letters) == rows_max:
            return DeadLetterPage(letters, letters[-1].position)
        last = await connection.execute("dead_letter_after_scan", values)
    return DeadLetterPage(letters, Position(*last.rows[0]) if last.rows else None)


async def retry_dead_letters(
    shard: Shard, tenant_id: int, keys: Sequence[RunKey], finish: Finish[int] = do_nothing
) -> int:
    """Make these due again, as new tries of the same runs; returns how many there were to retry.

    A run whose day has gone is put back from its letter, and runs as any other (see engine/stages/record.py). A deleted
    job's are left alone, and so are those of a day that is going just now: see ``is_going``.
    """

    async def transaction() -> int:
        async with shard.transaction() as connection:
            retried = await _retry(connection, tenant_id, sorted(keys), shard.packet_bytes_max) if keys else 0
            await finish(connection, retried)
            return retried

    return await shard.retrying(transaction)


async def delete_dead_letters(
    shard: Shard, tenant_id: int, keys: Sequence[RunKey], finish: Finish[int] = do_nothing
) -> int:
    """Forget these; the runs stay in the history. Returns how many there were."""

    async def transaction() -> int:
        async with shard.transaction() as connection:
            deleted = 0
            if keys:
                deleted = await connection.execute_rows(
                    "delete_dead_letters", sorted(keys), {"tenant_id": tenant_id}, bytes_max=shard.packet_bytes_max
                )
            await finish(connection, deleted)
            return deleted

    return await shard.retrying(transaction)


async def dead_letter_at(
    shard: Shard, partition_id: int, scheduled_at_ms: int, job_ids: Sequence[int]
) -> RunRow | None:
    """The dead letter of the newest of these jobs at one time."""
    values: dict[str, Value] = {"partition_id": partition_id, "scheduled_at": scheduled_at_ms, "job_ids": job_ids}
    rows = (await shard.execute("dead_letter_by_key", values)).rows if job_ids else ()
    return RunRow(*rows[0]) if rows else None


async def is_going(shard: Shard, key: RunKey) -> bool:
    """Whether the day of a run is closed and has not gone yet: a dead letter of it is retried once it has."""
    rows = (await shard.execute("share_planning_rows", {"partitions": [key.partition_id]})).rows
    return any(gone_ms <= key.scheduled_at_ms < closed_ms for *_, closed_ms, gone_ms in rows)


async def _retry(connection: Connection, tenant_id: int, keys: Sequence[RunKey], bytes_max: int) -> int:
    partitions = sorted({key.partition_id for key in keys})
    shared = (await connection.execute("share_planning_rows", {"partitions": partitions})).rows
    if not shared:
        return 0
    closed_ms, gone_ms = shared[0][3], shared[0][4]
    now_ms = int((await connection.execute("shard_now")).rows[0][0])
    wanted = [key for key in keys if not gone_ms <= key.scheduled_at_ms < closed_ms]
    runs = await _revive(connection, tenant_id, wanted, bytes_max) if wanted else []
    found = {RunKey(*run[:3]) for run in runs}
    gone = [key for key in wanted if key.scheduled_at_ms < gone_ms and key not in found]
    if gone:
        runs += await _put_back(connection, tenant_id, gone, bytes_max)
    if not runs:
        return 0
    due = sorted((*run[:3], now_ms, Reason.RETRY, run.priority, tenant_id) for run in runs)
    await connection.execute_rows("insert_deferred", due, bytes_max=bytes_max)
    await note_recounts(connection, [run[:2] for run in runs if run.scheduled_at_ms >= gone_ms], now_ms, bytes_max)
    revived = sorted(run[:3] for run in runs)
    await connection.execute_rows("delete_dead_letters", revived, {"tenant_id": tenant_id}, bytes_max=bytes_max)
    return len(runs)


async def _revive(
    connection: Connection, tenant_id: int, keys: Sequence[RunKey], bytes_max: int
) -> list[OpenRun]:
    """Those whose failed runs are there."""
    bounds = time_bounds(keys)
    values = {**bounds, "tenant_id": tenant_id}
    runs = sorted(map(open_run, await connection.fetch_rows("lock_failed_runs", keys, values, bytes_max=bytes_max)))
    if runs:
        fences = [(*run[:3], run.attempt) for run in runs]
        await connection.execute_rows("revive_runs", fences, bounds, bytes_max=bytes_max)
    return runs


async def _put_back(
    connection: Connection, tenant_id: int, keys: Sequence[RunKey], bytes_max: int
) -> list[OpenRun]:
    """Those of which nothing is left but the letter."""
    values = {"tenant_id": tenant_id}
    rows = await connection.fetch_rows("lock_letters_of_gone_days", keys, values, bytes_max=bytes_max)
    runs = sorted(map(open_run, rows))
    if runs:
        await connection.execute_rows("revive_letters", [run[:3] for run in runs], bytes_max=bytes_max)
    return runs


def _dead_letter(row: Sequence[object]) -> DeadLetter:
    died_at, partition_id, scheduled_at, job_id, name, version, state, trigger, attempt, tries, *rest = row
    run = (scheduled_at, job_id, version, state, trigger, attempt, tries, *rest)
    return DeadLetter(
        Position(died_at, partition_id, scheduled_at, job_id),  # type: ignore[arg-type]
        str(name),
        RunRow(*run),  # type: ignore[arg-type]
    )
