"""The plan of every statement that a tenant's call makes: by its index, without a sort, bounded in what it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engine.config import Dsn
from engine.model import HOUR_MS
from engine.stages.days import DAY_MS
from engine.store import statements
from engine.store.connection import Row
from engine.store.statements import Value
from tests.store.test_explain import FULL_DAY_MS, NOW_MS, fill
from tests.support.mysql import SchemaPool
from tests.support.world import World

TENANT = 7
ROWS = 101
RANGE = {"tenant_id": TENANT, "after": "job-1", "from_name": "", "to_name": "~"}
FILTER = {"state": None, "finished": None, "next_before": None, "now_ms": NOW_MS, "scan_max": ROWS, "rows_max": ROWS}
LABEL: dict[str, Value] = {"label": "team", "label_value": "x", "labels_more": 1, "more_labels": [("env", "prod")]}
DAY = {"partition_id": 3, "job_id": 99, "from_at": FULL_DAY_MS, "to_at": FULL_DAY_MS + 86_399_999}
HOURS = range(FULL_DAY_MS, FULL_DAY_MS + DAY_MS, HOUR_MS)
LETTERS = {
    "tenant_id": TENANT, "died_to": NOW_MS, "partition_id": 1, "scheduled_at": 1, "job_id": 1, "name": None,
    "from_name": "", "to_name": "~", "from_at": None, "to_at": None, "scan_max": ROWS, "rows_max": ROWS,
}  # fmt: skip

# Statement, its rows if it has any, its values, the table and the index that must serve it.
CALLS: list[tuple[str, Sequence[tuple[object, ...]], Mapping[str, Value], str, str]] = [
    ("find_jobs", [(TENANT, 1, f"job-{n}") for n in range(1, 40)], {}, "j", "by_name"),
    ("find_jobs", [(TENANT, 1, "job-5")], {}, "j", "by_name"),
    ("lock_job", [], {"partition_id": 3, "job_id": 99}, "j", "PRIMARY"),
    ("jobs_by_key", [(n % 8, n) for n in range(20, 60)], {"tenant_id": TENANT}, "j", "PRIMARY"),
    ("job_names", [], RANGE | FILTER, "jobs", "by_name"),
    ("job_name_at", [], RANGE | {"skipped": ROWS}, "jobs", "by_name"),
    ("labelled_job_names", [], RANGE | FILTER | LABEL, "job_labels", "PRIMARY"),
    ("labelled_job_name_at", [], RANGE | LABEL | {"skipped": ROWS}, "job_labels", "PRIMARY"),
    ("count_jobs", [], {"tenant_id": TENANT}, "jobs", "by_name"),
    ("job_ids_of_name", [], {"tenant_id": TENANT, "name": "job-5"}, "jobs", "by_name"),
    ("runs_of_job", [], DAY | {"states": [1, 2, 3], "rows_max": ROWS}, "runs", "of_job"),
    ("run_by_key", [], {"partition_id": 3, "scheduled_at": FULL_DAY_MS + 99, "job_ids": [99, 98]}, "runs", "PRIMARY"),
    ("attempts_of_run", [], {"partition_id": 3, "scheduled_at": FULL_DAY_MS, "job_id": 99}, "attempts", "PRIMARY"),
    ("lock_open_runs_of_job", [], DAY, "runs", "of_job"),
    ("run_times_of_job", [], DAY, "runs", "of_job"),
    ("deferred_of_job", [], {"partition_id": 3, "job_id": 99}, "deferred", "of_job"),
    ("skips_of_job", [], {**DAY, "rows_max": ROWS}, "skips", "PRIMARY"),
    ("dead_letters_page", [], LETTERS, "dead_letters", "of_tenant"),
    ("dead_letter_after_scan", [], {**LETTERS, "skipped": ROWS}, "dead_letters", "of_tenant"),
    ("dead_letter_by_key", [], {"partition_id": 3, "scheduled_at": 1, "job_ids": [99, 98]}, "dead_letters", "PRIMARY"),
    ("lock_letters_of_gone_days", [(n % 8, n, n) for n in range(20, 60)], {"tenant_id": TENANT}, "d", "PRIMARY"),
    ("sum_runs_of_job", [], {**DAY, "rows_max": ROWS}, "runs", "of_job"),
    ("busy_hours_of_job", [], {**DAY, "hours": HOURS}, "job_hours", "PRIMARY"),
    ("sum_tenant_hours", [], {"tenant_id": TENANT, "from_at": FULL_DAY_MS, "to_at": NOW_MS}, "tenant_hours", "PRIMARY"),
    ("signals_left", [], {"first_id": 1, "last_id": 5}, "signals", "sequence"),
    ("keys_by_hash", [(bytes([n]) * 32,) for n in range(9)], {}, "k", "PRIMARY"),
    ("requests_by_key", [(TENANT, bytes([n]) * 32) for n in range(9)], {}, "requests", "PRIMARY"),
]
# A name's jobs, and ranges of skipped times, are few: these two are sorted in memory.
SORTED = {"job_ids_of_name", "skips_of_job", "run_by_key", "attempts_of_run"}

Step = dict[str, Any]
COLUMNS = (
    *("id", "select_type", "table", "partitions", "type", "possible_keys", "key", "key_len", "ref"),
    *("rows", "filtered", "extra"),
)


@pytest.fixture(scope="module")
def plans(schema_pool: SchemaPool) -> list[list[Step]]:
    """EXPLAIN of each, on tables with many jobs, labels, dead letters and days."""

    async def explain(dsn: Dsn) -> list[list[Step]]:
        world = await World(dsn).open()
        try:
            await fill(world)
            await fill_for_tenants(world)
            return [await explained(world, name, rows, values) for name, rows, values, _, _ in CALLS]
        finally:
            await world.close()

    with schema_pool.schema() as dsn:
        return asyncio.run(explain(dsn))


async def fill_for_tenants(world: World) -> None:
    many = range(1, 2_000)
    tables: dict[str, list[Row]] = {
        "job_labels": [
            (TENANT, label, value, f"job-{n}", n % 8, n)
            for n in many
            for label, value in (("team", "xyz"[n % 3]), ("env", "prod" if n % 2 else "test"))
        ],
        "job_versions": [(n % 8, n, 1, 1, 1, 0, 0, "any", "", "00000000") for n in many if n % 20],
        "skips": [(n % 8, n, NOW_MS - n, NOW_MS, 1, 20, 1, NOW_MS) for n in many],
        "requests": [(TENANT, n, n, 200, "", NOW_MS) for n in many],
        "signals": [(n % 5, n, 1, n % 8, NOW_MS, n, 1, NOW_MS) for n in many],
        "tenants": [(n, f"tenant-{n}", NOW_MS) for n in many],
        "api_keys": [(n, n, "k", "full", NOW_MS) for n in many],
        "attempts": [(n % 8, FULL_DAY_MS + n, n, 1, 9, 1, 500, NOW_MS, NOW_MS, "", "") for n in many],
        "dead_letters": [(n % 8, FULL_DAY_MS + n, n, TENANT, f"job-{n}", 1, 5, 2, 1, 1, 1, NOW_MS + n) for n in many],
        "job_hours": [(n % 8, FULL_DAY_MS + n % 24 * HOUR_MS, n, *[1] * 9) for n in many],
        "tenant_hours": [(n, FULL_DAY_MS + n % 24 * HOUR_MS, n % 8, *[1] * 9) for n in many],
    }
    columns = {
        "tenants": "(tenant_id, name, created_at)",
        "api_keys": "(key_hash, tenant_id, name, scope, created_at)",
        "dead_letters": "(partition_id, scheduled_at, job_id, tenant_id, name, version, state, priority, trigger_kind,"
        " attempt, tries, died_at)",
    }
    for table, rows in tables.items():
        await world.rows(f"INSERT INTO {table} {columns.get(table, '')} VALUES {', '.join(map(str, rows))}")
    await world.rows(f"ANALYZE TABLE {', '.join(tables)}")


async def explained(
    world: World, name: str, rows: Sequence[tuple[object, ...]], values: Mapping[str, Value]
) -> list[Step]:
    text = statements.bind_rows(name, rows, values, 1 << 24)[0] if rows else statements.bind(name, values)
    async with world.shard.connection() as connection:
        steps = (await connection.run(b"EXPLAIN FORMAT=TRADITIONAL " + text)).rows
    return [dict(zip(COLUMNS, step, strict=True)) for step in steps]


@pytest.mark.parametrize("at", range(len(CALLS)), ids=[call[0] for call in CALLS])
def test_every_statement_of_a_call_goes_by_its_index(plans: list[list[Step]], at: int) -> None:
    name, _, _, table, key = CALLS[at]
    steps = {step["table"]: step for step in plans[at]}
    assert steps[table]["key"] == key, plans[at]
    assert all(step["type"] not in ("ALL", "index") for step in plans[at] if not str(step["table"]).startswith("<")), (
        plans[at]
    )
    touched = [step for step in plans[at] if step["table"] in ("runs", "r", "attempts")]
    assert all(len(str(step["partitions"]).split(",")) <= 2 for step in touched), touched
    if name not in SORTED:
        on_tables = [step for step in plans[at] if not str(step["table"]).startswith(("<", "k"))]
        assert not any("filesort" in str(step["extra"]) for step in on_tables), plans[at]
