"""Numbers of a job and of a tenant: right before and after they are rolled up, and for their tenant alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.clock import SystemClock, wall_ms
from engine.events import Events
from engine.model import HOUR_MS, RunState
from engine.rules.timestamps import parse_time
from engine.stages.rollup import Rollup
from engine.store.rollups import RUNS_MIN
from engine.store.shard import Shard
from tests.support.api import CRON_JOB, PARTITIONS, ApiServer, RunTable, Tenant

DAY_MS = 24 * HOUR_MS
SPANS = ("last_hour", "last_day", "last_30_days")
LAG_MS, DURATION_MS = 5, 40


def add(table: RunTable, at_ms: int, state: RunState = RunState.SUCCEEDED, lag_ms: int = LAG_MS) -> None:
    started_ms = at_ms + lag_ms
    table.add(at_ms, state, started_at=started_ms, finished_at=started_ms + DURATION_MS)


def counted(server: ApiServer, from_ms: int) -> None:
    """As the keeper does it, from an hour on."""

    async def count() -> None:
        for index, dsn in enumerate(server.dsns):
            shard = Shard(dsn, index)
            try:
                stage = Rollup(shard, range(PARTITIONS), SystemClock(), Events())
                await stage.run_once(wall_ms())
                async with shard.connection() as connection:
                    await connection.run(f"UPDATE counted SET counted_to = {from_ms}, seen_to = {from_ms}".encode())
                while await stage.run_once(wall_ms()):
                    pass
            finally:
                await shard.close()

    asyncio.run(count())


def runs(stats: Any) -> list[int]:
    """How many runs ended in each span."""
    return [sum(stats[span]["runs"].values()) for span in SPANS]


@pytest.fixture
def table(tenant: Tenant) -> RunTable:
    """A job that is 20 hours old, as far as its numbers are concerned."""
    tenant.put("job")
    table = RunTable(tenant, "job")
    table.query(f"UPDATE jobs SET created_at = created_at - {20 * HOUR_MS} WHERE job_id = {table.job_id}")
    return table


def test_numbers_are_the_same_read_and_rolled_up(tenant: Tenant, table: RunTable) -> None:
    now_ms = wall_ms() // 1000 * 1000
    hour_ms = now_ms - now_ms % HOUR_MS - 3 * HOUR_MS
    for n in range(RUNS_MIN + 2):
        add(table, hour_ms + n * 1000)
    add(table, hour_ms + HOUR_MS, RunState.FAILED, lag_ms=100)
    add(table, now_ms - 2_000)
    table.add(now_ms - 1_000, RunState.WAITING)
    read = tenant.get("/v1/jobs/job/stats").json
    assert runs(read) == [1, RUNS_MIN + 4, RUNS_MIN + 4]
    assert read["last_day"]["runs"] == {"succeeded": RUNS_MIN + 3, "failed": 1, "cancelled": 0, "skipped": 0}
    mean_ms = round((LAG_MS * (RUNS_MIN + 3) + 100) / (RUNS_MIN + 4), 1)
    assert read["last_day"]["lag_ms"] == {"mean": mean_ms, "max": 100}
    assert read["last_hour"]["duration_ms"] == {"mean": DURATION_MS, "max": DURATION_MS}
    assert all(read[span]["complete"] for span in SPANS)
    counted(tenant.server, hour_ms)
    assert table.query(f"SELECT hour_at FROM job_hours WHERE job_id = {table.job_id}") == [(hour_ms,)]
    rolled_up = tenant.get("/v1/jobs/job/stats").json
    for span in SPANS:
        assert {**rolled_up[span], "from": 0, "to": 0} == {**read[span], "from": 0, "to": 0}
    usage = tenant.get("/v1/usage").json["runs"]
    assert usage["last_day"]["runs"]["succeeded"] in (RUNS_MIN + 2, RUNS_MIN + 3)  # the youngest may be counted, too
    assert usage["last_day"]["runs"]["failed"] == 1
    assert parse_time(usage["last_day"]["to"]) <= wall_ms()


def test_usage_tells_the_starts_a_second_since_the_last_full_hour(tenant: Tenant, table: RunTable) -> None:
    now_ms = wall_ms()
    hour_ms = now_ms - now_ms % HOUR_MS - HOUR_MS
    for n in range(100):
        add(table, hour_ms + n * 1000)
    table.add(hour_ms + 200_000, RunState.SKIPPED)
    counted(tenant.server, hour_ms)
    usage = tenant.get("/v1/usage").json
    span = usage["runs"]["last_hour"]
    span_ms = parse_time(span["to"]) - parse_time(span["from"])
    assert span["runs"]["succeeded"] == 100
    assert usage["used"]["starts_per_s"] == round(100 * 1000 / span_ms, 3) > 0


def test_a_job_that_never_ran_has_numbers_of_nothing(tenant: Tenant) -> None:
    tenant.put("new")
    stats = tenant.get("/v1/jobs/new/stats").json
    assert runs(stats) == [0, 0, 0]
    assert stats["last_30_days"]["lag_ms"] is stats["last_30_days"]["duration_ms"] is None
    assert stats["last_30_days"]["complete"]


def test_p9_numbers_are_their_tenants_alone(tenant: Tenant, table: RunTable) -> None:
    add(table, wall_ms() // 1000 * 1000 - 5_000)
    other = tenant.server.tenant()
    assert other.get("/v1/jobs/job/stats").status == 404
    assert runs(other.get("/v1/usage").json["runs"]) == [0, 0, 0]


def test_numbers_take_no_parameters(tenant: Tenant, table: RunTable) -> None:
    assert tenant.get("/v1/jobs/job/stats?from=2030-01-01T00:00:00Z").status == 422


def test_numbers_whose_days_are_gone_are_not_complete(tenant: Tenant) -> None:
    tenant.put("old", CRON_JOB)
    table = RunTable(tenant, "old")
    table.query(f"UPDATE jobs SET created_at = created_at - {9 * DAY_MS} WHERE job_id = {table.job_id}")
    stats = tenant.get("/v1/jobs/old/stats").json
    assert [stats[span]["complete"] for span in SPANS] == [True, True, False]
