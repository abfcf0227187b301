"""Rows for bench/history.py: runs of thirty days, written by MySQL itself from a table of numbers."""

# ruff: noqa: S608 - numbers and names of ours, on a server of ours

from __future__ import annotations

from bench.world import Job, World
from engine.model import HOUR_MS, Cron, Definition, HttpTarget
from engine.stages.days import DAY_START
from engine.store.connection import Connection
from engine.store.tenants import create_tenant

DAY_MS = 24 * HOUR_MS
STATEMENT_MS_MAX = 600_000
NUMBERS = 200_000
TENANTS = 1_000
LAG_MS, DURATION_MS = 12, 28
# Above the ids of made-up jobs; real ones are far above both.
FIRST_JOB = 1_000

# Jobs that are listed, and every how many milliseconds they run.
LISTED = {"daily": DAY_MS, "hourly": HOUR_MS, "minutely": 60_000, "secondly": 1_000, "monthly": 30 * DAY_MS}

COLUMNS = (
    "partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind, attempt, tries, worker_id,"
    " lease_until, outcome, status_code, started_at, finished_at"
)


def first_day_ms(now_ms: int, days: int) -> int:
    """The beginning of the first of the days before today."""
    return now_ms // DAY_MS * DAY_MS - days * DAY_MS


async def fill_days(here: World, first_ms: int, days: int, runs: int) -> None:
    """So many runs over the days, of jobs with one a day, with the table cut anew: oldest day, days, and today on."""
    shard = here.shards[0]
    async with shard.connection() as connection:
        await _cut(connection, first_ms, days)
        await _make_numbers(connection)
        per_day = max(1, runs // days // here.partitions)
        for day in range(days):
            await _fill_day(here, connection, first_ms + day * DAY_MS, per_day)
            here.progress(f"{(day + 1) * per_day * here.partitions:,} runs written")


async def fill_oldest_day(here: World, first_ms: int, runs: int) -> None:
    """The day before the others, unless it is there."""
    day_ms = first_ms - DAY_MS
    async with here.shards[0].connection() as connection:
        asked = f"SELECT 1 FROM runs WHERE scheduled_at >= {day_ms} AND scheduled_at < {first_ms} LIMIT 1"
        if (await connection.run(asked.encode())).rows:
            return
        days = await connection.execute("days_of_table", {"table_name": "runs"})
        if int(days.rows[0][1]) == first_ms:
            # It was dropped, and is a part of what lies below all days.
            pieces = f"{_below(day_ms)}, PARTITION oldest VALUES LESS THAN ({first_ms})"
            for table in ("runs", "attempts"):
                text = f"ALTER TABLE {table} REORGANIZE PARTITION {DAY_START} INTO ({pieces})"
                await connection.run(text.encode(), STATEMENT_MS_MAX)
        await _fill_day(here, connection, day_ms, max(1, runs // here.partitions))
        here.progress(f"{runs:,} runs written for the day that is dropped")


async def write_jobs(here: World, first_ms: int, days: int) -> str:
    """A tenant with the jobs that are listed, as old as the days, and their runs; returns its key."""
    shard = here.shards[0]
    created = await create_tenant(shard, "bench")
    definition = Definition(Cron("0 0 1 1 *"), HttpTarget("http://127.0.0.1:9/"))
    await here.create_jobs([Job(created.tenant_id, name, definition) for name in LISTED])
    async with shard.connection() as connection:
        await connection.run(f"UPDATE jobs SET created_at = {first_ms}".encode())
        for name, every_ms in LISTED.items():
            where = f"tenant_id = {created.tenant_id} AND name = '{name}'"
            (job,) = (await connection.run(f"SELECT partition_id, job_id FROM jobs WHERE {where}".encode())).rows
            for day in range(days):
                day_ms = first_ms + day * DAY_MS
                times = f"SELECT {day_ms} + n * {every_ms} AS at, {job[1]} AS job FROM bench_numbers"
                count = DAY_MS // every_ms if every_ms <= DAY_MS else int(day == days // 2)
                await _insert(connection, job[0], f"{times} WHERE n < {count}", created.tenant_id)
    return created.api_key


async def _cut(connection: Connection, first_ms: int, days: int) -> None:
    ends = [first_ms + day * DAY_MS for day in range(days + 2)]
    days_made = ", ".join(f"PARTITION bench{number} VALUES LESS THAN ({end})" for number, end in enumerate(ends))
    pieces = f"{_below(first_ms - DAY_MS)}, {days_made}"
    for table in ("runs", "attempts"):
        text = f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})"
        await connection.run(text.encode(), STATEMENT_MS_MAX)
    for table in ("job_hours", "tenant_hours"):
        text = f"ALTER TABLE {table} PARTITION BY RANGE (hour_at) ({pieces})"
        await connection.run(text.encode(), STATEMENT_MS_MAX)


def _below(day_ms: int) -> str:
    return f"PARTITION {DAY_START} VALUES LESS THAN ({day_ms})"


async def _make_numbers(connection: Connection) -> None:
    await connection.run(b"CREATE TABLE IF NOT EXISTS bench_numbers (n INT PRIMARY KEY)")
    await connection.run(f"SET SESSION cte_max_recursion_depth = {NUMBERS}".encode())
    numbers = f"WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {NUMBERS - 1})"
    await connection.run(f"INSERT IGNORE INTO bench_numbers {numbers} SELECT n FROM s".encode(), STATEMENT_MS_MAX)


async def _fill_day(here: World, connection: Connection, day_ms: int, runs_per_partition: int) -> None:
    step_ms = DAY_MS // runs_per_partition
    for partition in range(here.partitions):
        first_job = FIRST_JOB + partition * NUMBERS
        times = f"SELECT {day_ms} + n * {step_ms} DIV 1000 * 1000 AS at, {first_job} + n AS job FROM bench_numbers"
        await _insert(connection, partition, f"{times} WHERE n < {runs_per_partition} ORDER BY n", None)


async def _insert(connection: Connection, partition: int, times: str, tenant_id: int | None) -> None:
    """Ended runs at these times."""
    tenant = f"s.job MOD {TENANTS} + 1" if tenant_id is None else str(tenant_id)
    started = f"s.at + {LAG_MS}"
    row = (
        f"{partition}, s.at, s.job, {tenant}, 1, 4, 2, 1, 1, 1, 7, s.at + 90000, 1, 200, {started},"
        f" {started} + {DURATION_MS}"
    )
    text = f"INSERT INTO runs ({COLUMNS}) SELECT {row} FROM ({times}) AS s"
    await connection.run(b"SET SESSION sql_log_bin = 0")
    await connection.run(b"SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        await connection.run(text.encode(), STATEMENT_MS_MAX)
    finally:
        await connection.run(b"SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        await connection.run(b"SET SESSION sql_log_bin = 1")
