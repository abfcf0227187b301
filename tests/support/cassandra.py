"""Real Cassandra for the tests: one node for the session, a keyspace for each test, and what is written there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from engine.config import Dsn, Settings
from engine.contact import Contact
from engine.history.history import History
from engine.history.schema import create_history
from engine.local.cassandra import CassandraServer
from engine.model import RunState
from engine.stages import record
from engine.stages.days import DAY_MS, DAY_START
from engine.stages.record import Record
from engine.stages.record_history import RecordHistory
from engine.store.connection import Row
from tests.support.mysql import server_folder
from tests.support.wait import until_async
from tests.support.world import PARTITIONS, TENANT, World

FLEET = b"f" * 16
RETENTION_DAYS = 30
LIVE_DAYS = 2
CONNECT_S = 30.0
HEAP_MIB = 384

_numbers = itertools.count(1)


@contextmanager
def running_node(name: str = "node") -> Iterator[CassandraServer]:
    """A node in a folder that is gone afterwards."""
    with server_folder() as folder:
        node = CassandraServer(folder / name, heap_mib=HEAP_MIB, say=lambda line: None)
        try:
            node.start()
            yield node
        finally:
            node.stop(0)


def new_keyspace(node: CassandraServer, retention_days: int = RETENTION_DAYS) -> Contact:
    """The address of a history of its own."""
    contact = Contact(((node.address, node.port),), f"test_{next(_numbers)}")
    create_history(contact, FLEET, retention_days)
    return contact


class Past:
    """A world whose first days are old enough to leave MySQL, with a recorder and what drops days, run by hand."""

    def __init__(self, world: World, history: History, days: int = 2) -> None:
        """``days``: so many are old enough."""
        self.world = world
        self.history = history
        self.settings = Settings(partition_count=PARTITIONS, history="cassandra", live_days=LIVE_DAYS)
        self.first_ms = world.now_ms - world.now_ms % DAY_MS - (LIVE_DAYS + days) * DAY_MS
        self.drop = Record(world.shard, world.partitions, self.settings, world.events)

    def recorder(self, worker_id: int = 1, durable_after_ms: int = 0) -> RecordHistory:
        """By default what is acknowledged is noted at once: the node is not killed."""
        world = self.world
        return RecordHistory(
            world.shard,
            world.partitions,
            self.history,
            worker_id,
            LIVE_DAYS,
            asyncio.Semaphore(2),
            world.clock,
            world.events,
            durable_after_ms,
        )

    async def make_days(self) -> None:
        days = (self.world.now_ms - self.first_ms) // DAY_MS + 4
        for table in ("runs", "attempts", "reports"):
            pieces = ", ".join(
                f"PARTITION d{n} VALUES LESS THAN ({self.first_ms + n * DAY_MS})" for n in range(1, days)
            )
            pieces = f"PARTITION {DAY_START} VALUES LESS THAN (0), {pieces}"
            await self.world.rows(f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})")
        await self.world.rows(f"UPDATE floor SET floor_at = {self.first_ms}")

    async def fill(self, runs: int, *, job_id: int = 1000, jobs: int = 5, state: RunState = RunState.SUCCEEDED) -> int:
        """Runs that have ended, in all partitions and spread over the days that are old enough; every tenth has a
        failed attempt. Returns the number of runs."""
        step_ms = 2 * DAY_MS // runs
        rows, attempts = [], []
        for n in range(runs):
            at_ms = self.first_ms + n * step_ms // 1000 * 1000
            key = f"{n % PARTITIONS}, {at_ms}, {job_id + n % jobs}"
            rows.append(
                f"({key}, {TENANT}, 1, {int(state)}, 2, 1, {1 + (n % 10 == 0)}, 1, 200, {at_ms + 1}, {at_ms + 9}, 1)"
            )
            if n % 10 == 0:
                attempts.append(f"({key}, 1, 1, 500, {at_ms}, {at_ms + 4}, 'no', 'sorry')")
        await self.world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            f" attempt, outcome, status_code, started_at, finished_at, tries) VALUES {', '.join(rows)}"
        )
        if attempts:
            await self.world.rows(
                "INSERT INTO attempts (partition_id, scheduled_at, job_id, attempt, outcome, status_code, started_at,"
                f" finished_at, detail, answer) VALUES {', '.join(attempts)}"
            )
        return runs

    async def in_mysql(self, job_id: int = 1000, jobs: int = 5) -> set[Row]:
        rows = await self.world.rows(
            f"SELECT job_id, scheduled_at, attempt FROM runs WHERE job_id BETWEEN {job_id} AND {job_id + jobs - 1}"
        )
        return set(rows)

    async def in_cassandra(self, job_id: int = 1000, jobs: int = 5) -> list[Row]:
        """Every run of these jobs; one that stands there twice is there twice."""
        found = []
        for number in range(job_id, job_id + jobs):
            rows = await self.history.list_runs(TENANT, number, self.first_ms, self.world.now_ms, 100_000)
            found += [(row.job_id, row.scheduled_at_ms, row.attempt) for row in rows]
        return found

    async def days(self) -> list[str]:
        rows = await self.world.shard.execute("days_of_table", {"table_name": "runs"})
        return [row[0] for row in rows.rows if row[0] != DAY_START]

    async def turn(self, recorder: RecordHistory) -> None:
        """Raise the floor over one day, record it, and drop it."""
        await self.drop.run_once(self.world.now_ms)
        while await recorder.run_once(self.world.now_ms):
            pass
        await self.drop.run_once(self.world.now_ms)

    def told(self, name: str) -> list[dict[str, object]]:
        return [fields for event, fields in self.world.told if event == name]


def run_past(dsn: Dsn, contact: Contact, body: Callable[[Past], Awaitable[None]], days: int = 2) -> None:
    """Run an async test body over a world with a past, connected to Cassandra."""

    async def main() -> None:
        world = await World(dsn).open()
        history = History(contact, RETENTION_DAYS, world.events)
        history.start()
        try:
            past = Past(world, history, days)
            await past.make_days()
            await until_async(lambda: history.connected, CONNECT_S)
            await body(past)
        finally:
            await history.stop()
            await world.close()

    asyncio.run(main())


def always_quiet(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Days are dropped at any second of a minute."""
    monkeypatch.setattr(record, "QUIET_FROM_S", 0)
    monkeypatch.setattr(record, "QUIET_TO_S", 60)


