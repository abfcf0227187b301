"""A small world for stage tests: one real shard made a fleet, a clock set by hand, workers whose stages run by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from engine.config import Dsn, Settings
from engine.events import Events
from engine.model import (
    Cron,
    Definition,
    HttpTarget,
    JobState,
    OutcomeKind,
    RunAt,
    RunKey,
    RunState,
    VersionEvent,
    mint_job_id,
    partition_of,
)
from engine.outbound.exchange import Outcome
from engine.outbound.target import Guard
from engine.rules.schedule import next_time
from engine.settings import keys_of
from engine.stages.claim import Claim
from engine.stages.days import Days
from engine.stages.forecast import Forecast
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.plan import Plan
from engine.stages.reap import Reap
from engine.stages.settle import Settle
from engine.stages.sweep import Sweep
from engine.stages.versions import Versions
from engine.store.connection import Row
from engine.store.fleet import create_fleet
from engine.store.shard import Shard
from tests.support.clock import SettableClock

PARTITIONS = 8
TENANT = 7
TARGET = HttpTarget("http://127.0.0.1:9/ok")
SETTINGS = Settings(partition_count=PARTITIONS)


class World:
    """One shard. Times are real at first, so that the shard's clock and ours agree, and then move by hand."""

    def __init__(self, dsn: Dsn) -> None:
        self.shard = Shard(dsn, 0, connections_max=16, keys=keys_of(SETTINGS))
        self.events = Events()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.events.subscribe(lambda name, fields: self.told.append((name, fields)))
        self.partitions = list(range(PARTITIONS))
        self.versions = Versions(Guard(["127.0.0.0/8"], []))

    async def open(self) -> World:
        await create_fleet([self.shard], PARTITIONS)
        self.clock = SettableClock(await self.shard.now_ms())
        await Days(self.shard, self.events).run_once(self.clock.now_ms())
        return self

    async def close(self) -> None:
        await self.shard.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def second(self, ahead_s: int) -> int:
        """A whole second so far from now, in milliseconds."""
        return (self.now_ms // 1000 + ahead_s) * 1000

    async def job(
        self, name: str, schedule: RunAt | Cron, *, next_run_at_ms: int | None = None, **settings: Any
    ) -> int:
        """A stored, active job, due at its first time from now on unless told otherwise; returns its id."""
        partition_id = partition_of(TENANT, name, PARTITIONS)
        job_id = mint_job_id(self.now_ms, partition_id)
        definition = Definition(schedule=schedule, **({"target": TARGET} | settings))
        first_ms = schedule.run_at_ms if isinstance(schedule, RunAt) else next_time(schedule, self.now_ms - 1)
        await self.put(job_id, partition_id, name, definition, next_run_at_ms or first_ms)
        return job_id

    async def put(
        self, job_id: int, partition_id: int, name: str, definition: Definition, next_run_at: int | None
    ) -> None:
        async with self.shard.transaction() as connection:
            values = (
                partition_id, job_id, TENANT, name, 1, int(JobState.ACTIVE), 1, int(definition.priority),
                int(definition.overlap), next_run_at, self.now_ms, self.now_ms,
            )  # fmt: skip
            await connection.run(
                "INSERT INTO jobs (partition_id, job_id, tenant_id, name, alive, state, version, priority, overlap,"
                f" next_run_at, created_at, updated_at) VALUES {_tuple(values)}".encode()
            )
            stored = (
                partition_id, job_id, 1, int(VersionEvent.CREATED), int(JobState.ACTIVE), self.now_ms, next_run_at,
                "test", definition.encode(),
            )  # fmt: skip
            await connection.run(f"INSERT INTO job_versions VALUES {_tuple((*stored, None))}".encode())

    async def rows(self, sql: str) -> list[Row]:
        async with self.shard.connection() as connection:
            return list((await connection.run(sql.encode())).rows)

    async def states(self) -> list[tuple[int, RunState]]:
        """(scheduled_at, state) of every run, in order of time."""
        rows = await self.rows("SELECT scheduled_at, state FROM runs ORDER BY scheduled_at, job_id")
        return [(row[0], RunState(row[1])) for row in rows]

    def worker(self) -> Worker:
        return Worker(self)

    def reap(self) -> Reap:
        return Reap(self.shard, self.partitions, self.versions, SETTINGS, self.clock, self.events)

    def sweep(self) -> Sweep:
        return Sweep(self.shard, self.partitions, self.events)

    def names_told(self) -> list[str]:
        return [name for name, _ in self.told]


class Worker:
    """One worker: its lease, what it holds, and its stages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held = HeldRuns(world.now_ms, 10_000)
        self.lost = 0
        clock, events = world.clock, world.events
        self.lease = Lease(world.shard, world.partitions, SETTINGS, clock, events, self._on_lost)
        self.forecast = Forecast(world.shard, self.lease)
        self.plan = Plan(
            world.shard, self.lease, self.forecast, self.held, self.held.add, world.versions, SETTINGS, clock, events,
            _told,
        )
        self.claim = Claim(
            world.shard, self.lease, world.partitions, self.held, self.held.add, world.versions, clock, events, _told
        )
        self.busy = False
        self.settle = Settle(
            world.shard, self.held, clock, events, _told, lambda: self.busy, lambda: 0.5
        )

    async def join(self) -> Worker:
        await self.lease.run_once(self.world.now_ms)
        return self

    def _on_lost(self) -> None:
        self.lost += 1

    def runs(self) -> list[HeldRun]:
        """What it holds, in order of key."""
        return sorted(self.held.unfired(), key=lambda run: run.key)

    async def plan_all(self) -> None:
        while await self.plan.run_once(self.world.now_ms):
            pass

    async def end(self, run: HeldRun, status: int = 200, kind: OutcomeKind = OutcomeKind.ANSWERED) -> None:
        """Settle a run as if it had been called now."""
        now_ms = self.world.now_ms
        self.settle.settled(run, Outcome(kind, status, None, b"answer", now_ms, now_ms, True, "", ""))
        await self.settle.run_once(now_ms)


def _told(tenant_id: int, definition: Definition) -> bool:
    return True


def run_world(dsn: Dsn, body: Any) -> None:
    """Run an async test body with a world of its own."""

    async def main() -> None:
        world = await World(dsn).open()
        try:
            await body(world)
        finally:
            await world.close()

    asyncio.run(main())


def key_of(job_id: int, name: str, scheduled_at_ms: int) -> RunKey:
    return RunKey(partition_of(TENANT, name, PARTITIONS), scheduled_at_ms, job_id)


def _tuple(values: Sequence[object]) -> str:
    return "(" + ", ".join(_literal(value) for value in values) + ")"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return repr(value)


