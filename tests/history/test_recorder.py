"""The recorder as the supervisor's child, killed where it hurts: each run ends up in Cassandra, and is listed once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from engine.commands.audit import audit, lines
from engine.config import Dsn
from engine.contact import Contact
from engine.model import Cron, RunState, partition_of
from engine.rules.timestamps import parse_time
from tests.support.api import ApiServer, Tenant, make_fleet, run_on_first, served
from tests.support.cassandra import CONNECT_S, FLEET, Past, run_past
from tests.support.engines import Engine
from tests.support.mysql import query
from tests.support.wait import until, until_answered
from tests.support.world import PARTITIONS, TENANT

JOBS, TIMES, STEP_MS = 8, 100, 10_000
RUNS = JOBS * TIMES
EVENTUALLY_S = 40.0
FREEZE_MS = 30_000


class HastyEngine(Engine):
    """Its days leave in seconds."""

    def __init__(self, folder: Path, dsn: Dsn, contact: Contact) -> None:
        flags = ("--executors", "1", "--cassandra", contact.text(), "--cassandra-sync-ms", "100")
        super().__init__(folder / "engine.log", [dsn], flags, 0)
        self._command = [sys.executable, "-m", "tests.support.hasty", *self._command[4:]]


class Ran:
    """Jobs of which each ran TIMES times on the oldest day, and who looks at them."""

    def __init__(self, past: Past, tenant: Tenant) -> None:
        self.past = past
        self.tenant = tenant
        self.times = [past.first_ms + n * STEP_MS for n in range(TIMES)]

    async def write(self) -> None:
        self.ids = {f"job-{n}": await self._write_job(f"job-{n}") for n in range(JOBS)}
        await self.past.world.rows(f"UPDATE jobs SET next_run_at = NULL, created_at = {self.past.first_ms}")

    async def _write_job(self, name: str) -> int:
        schedule = Cron("*/10 * * * * *", start_at_ms=self.times[0], end_at_ms=self.times[-1])
        job_id = await self.past.world.job(name, schedule, next_run_at_ms=self.times[0])
        place, state = partition_of(TENANT, name, PARTITIONS), int(RunState.SUCCEEDED)
        rows = [f"({place}, {at}, {job_id}, {TENANT}, 1, {state}, 2, 1, 1, 1, {at}, {at + 9})" for at in self.times]
        await self.past.world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            f" attempt, tries, started_at, finished_at) VALUES {', '.join(rows)}"
        )
        return job_id

    async def recorded(self) -> int:
        """Rows in Cassandra."""
        span = self.times[0], self.times[-1]
        asked = (self.past.history.list_ends(TENANT, job_id, *span, RUNS) for job_id in self.ids.values())
        return sum(map(len, await asyncio.gather(*asked)))

    async def all_recorded(self) -> bool:
        return await self.recorded() >= RUNS

    async def listed(self) -> None:
        """Each run once, in order, whichever store has it."""
        for name in self.ids:
            answer = await asyncio.to_thread(self.tenant.get, f"/v1/jobs/{name}/runs?page_size={2 * TIMES}")
            assert [parse_time(run["scheduled_at"]) for run in answer.json["runs"]] == self.times[::-1]
            assert "warnings" not in answer.json

    async def left_mysql(self) -> bool:
        return await self.in_mysql() == 0

    async def in_mysql(self) -> int:
        return int((await self.past.world.rows("SELECT COUNT(*) FROM runs"))[0][0])


def tenant_of(server: ApiServer) -> Tenant:
    """The one that the jobs of a world belong to."""
    (dsn,) = server.dsns
    created = run_on_first(dsn, "tenant")
    for table in ("tenants", "api_keys"):
        asyncio.run(query(dsn, f"UPDATE {table} SET tenant_id = {TENANT} WHERE tenant_id = {created.tenant_id}"))
    return Tenant(server, created._replace(tenant_id=TENANT))


def test_p2_a_recorder_process_killed_twice_loses_nothing_and_nothing_is_listed_twice(
    shard_dsn: Dsn, contact: Contact, tmp_path: Path
) -> None:
    """While it writes, and once all is written and nothing of it is noted; each time the next one goes on."""
    asyncio.run(make_fleet([shard_dsn]))
    asyncio.run(query(shard_dsn, f"UPDATE fleet SET history = 'cassandra', fleet_id = UNHEX('{FLEET.hex()}')"))
    engine = HastyEngine(tmp_path, shard_dsn, contact)

    async def body(past: Past) -> None:
        ran = Ran(past, tenant)
        await ran.write()
        engine.start()
        await until_answered(ran.recorded, EVENTUALLY_S)
        engine.kill("recorder")
        assert 0 < await ran.recorded() < RUNS
        await ran.listed()
        await until_answered(ran.all_recorded, EVENTUALLY_S)
        engine.kill("recorder")
        assert ((await past.days())[0], await ran.in_mysql()) == ("d1", RUNS)
        await ran.listed()
        await until_answered(ran.left_mysql, EVENTUALLY_S)
        await ran.listed()
        assert await ran.recorded() == RUNS
        result = await audit([shard_dsn], 0, None, FREEZE_MS, past.history)
        assert result.flawless, "\n".join(lines(result))
        assert result.tally.times == RUNS

    try:
        with served([shard_dsn], make=False, history="cassandra", cassandra=contact) as server:
            until(lambda: server.service.history.connected, CONNECT_S)
            tenant = tenant_of(server)
            run_past(shard_dsn, contact, body)
    finally:
        engine.kill_all()
    assert [each["code"] for each in engine.told("child.ended")] == [-9, -9]
    assert [(each["stage"], each["error"]) for each in engine.told("stage.failed")] == []
