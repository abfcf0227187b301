"""The plan of every hot statement: by its index, without a sort, on at most two days of a table that is cut by day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from engine.config import Dsn
from engine.model import RunAt, RunState
from engine.stages.days import DAY_MS
from engine.store import statements
from engine.store.connection import Row
from engine.store.statements import Value
from tests.support.world import TARGET, World

NOW_MS = 1_796_083_200_000
JOBS = 3_000
DAYS = 20
FULL_DAY_MS = NOW_MS - DAYS * DAY_MS
# Runs of one day, all of them there: with a single row the server answers from the key and plans nothing.
KEYS = sorted((n % 8, FULL_DAY_MS + n, n) for n in range(DAYS, JOBS, DAYS))
BOUNDS = {"from_at": FULL_DAY_MS, "to_at": FULL_DAY_MS + JOBS}
FENCE = {**BOUNDS, "worker_id": 9}
PARTITIONS = [0, 1, 2, 3, 4, 5, 6, 7]

# Statement, its batch row if it has one (of runs or jobs), its values, and the table whose index must serve it.
HOT: list[tuple[str, tuple[object, ...] | None, Mapping[str, Value], str, str]] = [
    ("partitions_with_due_jobs", None, {"partitions": PARTITIONS, "horizon_at": NOW_MS}, "jobs", "due"),
    ("share_planning_rows", None, {"partitions": PARTITIONS[:1]}, "p", "PRIMARY"),
    (
        "lock_due_jobs",
        None,
        {"partitions": PARTITIONS, "priority": 2, "due_after": -1, "horizon_at": NOW_MS, "rows_max": 1_000},
        "jobs",
        "due",
    ),
    ("lock_jobs_of_tenants", ("place", 7), {"priority": 2, "each_max": 10}, "jobs", "due"),
    ("read_versions", ("job", 1), {}, "v", "PRIMARY"),
    ("lock_runs_of_keys", ("key",), BOUNDS, "r", "PRIMARY"),
    ("reopen_runs", ("key", 1, 2, 2, 2, 9, NOW_MS), BOUNDS, "r", "PRIMARY"),
    ("advance_jobs", ("job", 1, NOW_MS, None, NOW_MS), {}, "j", "PRIMARY"),
    ("my_planned_runs", ("key", 1), FENCE, "r", "PRIMARY"),
    (
        "due_deferred",
        None,
        {"partitions": PARTITIONS, "priority": 2, "due_after": -1, "due_at": NOW_MS, "rows_max": 1_000},
        "deferred",
        "due",
    ),
    ("lock_deferred_runs", ("key",), {**BOUNDS, "due_at": NOW_MS}, "r", "PRIMARY"),
    ("claim_runs", ("key", 2, NOW_MS), FENCE | {"started_at": None}, "r", "PRIMARY"),
    ("take_deferred", ("key", NOW_MS, 1, (1 << 18) + 1), {}, "d", "PRIMARY"),
    ("set_deferred_due", ("key", NOW_MS, 1), {}, "d", "PRIMARY"),
    ("delete_deferred", ("key",), {}, "d", "PRIMARY"),
    ("settle_runs", ("key", 1, 4, 1, None, 1, 200, NOW_MS, NOW_MS, 0), FENCE, "r", "PRIMARY"),
    ("complete_runs", ("key", 1, 4, 1, None, 1, 200, NOW_MS, NOW_MS, 0), FENCE, "r", "PRIMARY"),
    ("lock_held_runs", ("key", 1), FENCE, "r", "PRIMARY"),
    (
        "held_by_worker",
        None,
        {**FENCE, "partitions": PARTITIONS, "rows_max": 1_000},
        "r",
        "PRIMARY",
    ),
    ("lock_dead_runs", ("key",), FENCE, "r", "PRIMARY"),
    ("lock_open_runs", None, {**BOUNDS, "partition_id": 3}, "r", "PRIMARY"),
    (
        "deferred_below",
        None,
        {"partitions": PARTITIONS, "gone_to": FULL_DAY_MS - 9, "until_at": FULL_DAY_MS + 9},
        "deferred",
        "PRIMARY",
    ),
    (
        "retried_runs",
        None,
        {"partitions": PARTITIONS, "gone_to": FULL_DAY_MS + 9, "rows_max": 200},
        "runs",
        "PRIMARY",
    ),
    (
        "ended_of_gone_days",
        None,
        {"partitions": PARTITIONS, "gone_to": FULL_DAY_MS + 9, "ended_before": NOW_MS, "rows_max": 200},
        "runs",
        "PRIMARY",
    ),
    ("lock_ended_runs", ("key", 1), BOUNDS, "r", "PRIMARY"),
    ("note_recorded_again", ("key", 1), BOUNDS, "r", "PRIMARY"),
    ("delete_runs", ("key",), BOUNDS, "r", "PRIMARY"),
    ("delete_attempts_of_runs", ("key",), BOUNDS, "a", "PRIMARY"),
    ("delete_reports_of_runs", ("key",), BOUNDS, "p", "PRIMARY"),
    ("attempts_of_runs", ("key",), BOUNDS, "a", "PRIMARY"),
    ("reports_of_runs", ("key",), BOUNDS, "p", "PRIMARY"),
    ("lock_due_notices", None, {"now_ms": NOW_MS, "rows_max": 100}, "notices", "due"),
    ("work_ahead", None, {"lanes": [1 << 62, (1 << 62) + 5]}, "deferred", "due"),
    ("due_work", None, {"lane": 1 << 62, "priority": 2, "now_ms": NOW_MS, "rows_max": 50}, "deferred", "due"),
    ("waiting_lanes", None, {"lanes_from": 1 << 62, "rows_max": 5_000}, "deferred", "due"),
    ("lane_owners", (1 << 62, 2), {}, "deferred", "due"),
    (
        "aged_work",
        None,
        {
            "lane": 1 << 62,
            "priority": 2,
            "due_after": -1,
            "after_tenant": 0,
            "after_partition": 0,
            "after_scheduled_at": 0,
            "after_job": 0,
            "aged_at": NOW_MS,
            "rows_max": 200,
        },
        "d",
        "due",
    ),
    ("lock_work", ("key",), BOUNDS, "r", "PRIMARY"),
    ("leases_over", ("key",), {"now_ms": NOW_MS}, "d", "PRIMARY"),
    (
        "lapsed_work",
        None,
        {"lanes": PARTITIONS, "now_ms": NOW_MS, "silence_counts": 1, "over_before": NOW_MS, "rows_max": 1_000},
        "d",
        "due",
    ),
    ("live_listeners", None, {"seen_from": NOW_MS - 5_000, "rows_max": 1_000}, "listeners", "seen"),
    ("delete_old_listeners", None, {"seen_before": NOW_MS - 495_000}, "listeners", "seen"),
    ("read_signals", None, {"worker_id": 9, "rows_max": 100}, "signals", "PRIMARY"),
]

# Under pressure alone, and then what they bring is sorted into turns; what they pass is read from the index alone.
LOOKS: list[tuple[str, Mapping[str, Value], str]] = [
    (
        "tenants_with_due_jobs",
        {
            "partitions": PARTITIONS,
            "priority": 2,
            "due_after": -1,
            "horizon_at": NOW_MS + 1_000_000,
            "loud": [7],
            "places_max": 50_000,
            "rows_max": 1_000,
        },
        "jobs",
    ),
    (
        "due_deferred_of_others",
        {
            "partitions": PARTITIONS,
            "priority": 2,
            "due_after": -1,
            "due_at": NOW_MS,
            "loud": [7],
            "places_max": 200_000,
            "rows_max": 1_000,
        },
        "deferred",
    ),
]


@pytest.fixture(scope="module")
def plans(schema_pool: object) -> dict[str, list[dict[str, object]]]:
    """EXPLAIN of every hot statement, on tables with many jobs and many days."""

    async def explain(dsn: Dsn) -> dict[str, list[dict[str, object]]]:
        world = await World(dsn).open()
        try:
            await fill(world)
            asked = [row[:3] for row in HOT] + [(name, None, values) for name, values, _ in LOOKS]
            return {name: await explained(world, name, row, values) for name, row, values in asked}
        finally:
            await world.close()

    with schema_pool.schema() as dsn:  # type: ignore[attr-defined]
        return asyncio.run(explain(dsn))


async def fill(world: World) -> None:
    await world.job("any", RunAt(NOW_MS), target=TARGET)
    jobs = [(n % 8, n, 7, f"job-{n}", 1, 1, 1, 2, 1, NOW_MS + n * 1_000, NOW_MS, NOW_MS) for n in range(1, JOBS)]
    runs: list[Row] = [
        (n % 8, FULL_DAY_MS + n % DAYS * DAY_MS + n, n, 7, 1, int(RunState.SUCCEEDED), 2, 1, 1, 9, NOW_MS)
        for n in range(1, JOBS)
    ]
    async with world.shard.connection() as connection:
        for table in ("runs", "attempts"):
            pieces = ", ".join(
                f"PARTITION d{n} VALUES LESS THAN ({NOW_MS + (n - DAYS) * DAY_MS})" for n in range(DAYS + 5)
            )
            await connection.run(f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})".encode())
        columns = "partition_id, job_id, tenant_id, name, alive, state, version, priority, overlap, next_run_at"
        values = ", ".join(str(row) for row in jobs)
        await connection.run(f"INSERT INTO jobs ({columns}, created_at, updated_at) VALUES {values}".encode())
        await connection.execute_rows("insert_runs", sorted(runs), bytes_max=1 << 24)
        deferred = [(*key, NOW_MS + key[2] * 1_000, 1, 2, 7) for key in KEYS]
        await connection.execute_rows("insert_deferred", deferred, bytes_max=1 << 24)
        versions = ", ".join(f"({key[0]}, {key[2]}, 1, 1, 1, 0, 0, 'any', '', NULL)" for key in KEYS)
        await connection.run(f"INSERT INTO job_versions VALUES {versions}".encode())
        listeners = [("10.0.0.5", port, "", NOW_MS - 1_000 * port) for port in range(500)]
        await connection.execute_rows("note_listeners", listeners, bytes_max=1 << 24)
        await connection.run(b"ANALYZE TABLE jobs, runs, listeners")


async def explained(
    world: World, name: str, row: tuple[object, ...] | None, values: Mapping[str, Value]
) -> list[dict[str, object]]:
    rows = [_filled(row, key) for key in KEYS] if row else []
    text = statements.bind_rows(name, rows, values, 1 << 24)[0] if rows else statements.bind(name, values)
    columns = ("id", "select_type", "table", "partitions", "type", "possible_keys", "key", "key_len", "ref", "rows")
    async with world.shard.connection() as connection:
        steps = (await connection.run(b"EXPLAIN FORMAT=TRADITIONAL " + text)).rows
    return [dict(zip((*columns, "filtered", "extra"), step, strict=True)) for step in steps]


def _filled(row: tuple[object, ...], key: tuple[int, int, int]) -> tuple[object, ...]:
    """The batch row of a statement for one run, its job, the job's place in the index, or for what is no run."""
    if not isinstance(row[0], str):
        return row
    return (*_STARTS[row[0]](key), *row[1:])


_STARTS: dict[str, Callable[[tuple[int, int, int]], tuple[int, ...]]] = {
    "key": lambda key: key,
    "job": lambda key: (key[0], key[2]),
    "place": lambda key: (key[0], NOW_MS + key[2] * 1_000),
}


@pytest.mark.parametrize(("name", "table", "index"), [(row[0], row[3], row[4]) for row in HOT])
def test_a_hot_statement_runs_by_its_index_without_a_sort(
    plans: dict[str, list[dict[str, object]]], name: str, table: str, index: str
) -> None:
    (step,) = [step for step in plans[name] if step["table"] == table]
    assert step["key"] == index, step
    assert step["type"] in ("const", "eq_ref", "ref", "range"), step
    for each in plans[name]:
        assert "filesort" not in str(each["extra"]), each
        assert "temporary" not in str(each["extra"]), each


@pytest.mark.parametrize("name", [row[0] for row in LOOKS])
def test_p6_a_look_behind_loud_tenants_reads_an_index_alone(
    plans: dict[str, list[dict[str, object]]], name: str
) -> None:
    (table,) = [row[2] for row in LOOKS if row[0] == name]
    (step,) = [step for step in plans[name] if step["table"] == table]
    assert step["key"] == "due", step
    assert step["type"] in ("range", "ref"), step
    assert "Using index" in str(step["extra"]), step


@pytest.mark.parametrize("name", [row[0] for row in HOT if row[3] == "r"])
def test_a_statement_on_runs_touches_two_days_at_most(plans: dict[str, list[dict[str, object]]], name: str) -> None:
    (step,) = [step for step in plans[name] if step["table"] == "r"]
    assert len(str(step["partitions"]).split(",")) <= 2, step
