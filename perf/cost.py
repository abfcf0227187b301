"""What one run costs, step by step, measured on this machine and held against a model: writes cost.md and cost.json.

    .venv/bin/python perf/cost.py [--runs N]

One MySQL shard at default durability, the real stages run by hand one after the other, a receiver that answers at once.
CPU of this process is the executor's, CPU of mysqld the shard's; bytes are the server's own counters and binlog files.
The model takes each statement's shape alone, as it was measured at 2,000 sorted rows with nothing else going on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import load
from bench.usage import cpu_s
from bench.world import Job, World, world
from engine.clock import SystemClock, cpu_ns
from engine.commands.bench import progress
from engine.errors import OperatorError
from engine.events import Events
from engine.local.nginx import Sink
from engine.model import OutcomeKind
from engine.outbound.client import HttpClient
from engine.outbound.exchange import Outcome
from engine.outbound.resolver import DnsResolver
from engine.outbound.target import Guard
from engine.process import calm_collector
from engine.rules.brakes import RELEASED
from engine.service import Service
from engine.settings import keys_of
from engine.stages.claim import Claim
from engine.stages.fire import Fire
from engine.stages.fleet_listeners import FleetListeners
from engine.stages.forecast import Forecast
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.plan import Plan
from engine.stages.settle import Settle
from engine.stages.tenancy import Tenancy
from engine.stages.versions import Versions
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard
from engine.store.tenants import Tenants

FOLDER = Path(__file__).parent
DAY_MS = 86_400_000
LOOPBACK = ("127.0.0.0/8",)
HELD_MAX = 1_000_000
FIRE_S_MAX = 60
# Time for what the server does behind a commit: purge, and writing pages.
BETWEEN_S = 1.0
# The single runs are due so soon: planning them takes a part of it, and connections are opened in the last 3 s.
SOON_MS = 15_000
# The daily jobs are due so far ahead, and planned this long before.
AHEAD_MS, PLANNED_AHEAD_MS = 300_000, 10_000
# No first retry is later than this.
BACKOFF_MS_MAX = 30_000

STATUS = (
    "Bytes_received", "Bytes_sent", "Innodb_os_log_written", "Innodb_rows_inserted", "Innodb_rows_updated",
    "Innodb_rows_deleted", "Innodb_rows_read",
)  # fmt: skip


class Model(NamedTuple):
    """What a step should cost a run: microseconds of MySQL, statements (round trips), rows written and read."""

    mysqld_us: float
    statements: float
    written: float
    read: float


# µs of mysqld for a row, each shape alone.
SELECT_DUE, INSERT_RUN, ADVANCE, SETTLE, SELECT_BY_KEY = 1.9, 7.9 * 1.25, 24.1, 10.9 * 1.1, 4.0
INSERT_DEFERRED, UPDATE_BY_KEY, INSERT_ATTEMPT = 7.9, 10.9, 7.9
PLAN_ROWS, SETTLE_ROWS, CLAIM_ROWS = 1_000, 2_000, 1_000

MODEL = {
    # begin, share, lock, savepoint, insert, advance, commit, and whether there is more; versions where they are new
    "plan, version known": Model(SELECT_DUE + INSERT_RUN + ADVANCE, 8 / PLAN_ROWS, 2, 2),
    "plan, version new": Model(SELECT_DUE + SELECT_BY_KEY + INSERT_RUN + ADVANCE, 9 / PLAN_ROWS, 2, 3),
    "fire": Model(0, 0, 0, 0),
    "settle": Model(SETTLE, 3 / SETTLE_ROWS, 1, 1),
    # lock what is mine, failed attempts, deferred rows, the runs
    "settle, to be tried again": Model(
        SELECT_BY_KEY + INSERT_ATTEMPT + INSERT_DEFERRED + SETTLE, 6 / SETTLE_ROWS, 3, 2
    ),
    # candidates, share, lock, versions from the cache, runs, deferred rows
    "claim": Model(SELECT_DUE + 2 * SELECT_BY_KEY + 2 * UPDATE_BY_KEY, 7 / CLAIM_ROWS, 2, 5),
}
PATHS = {
    "a run of a cron job": ("plan, version known", "fire", "settle"),
    "a single run, or the first": ("plan, version new", "fire", "settle"),
    "each further try": ("settle, to be tried again", "claim", "fire"),
}


@dataclass
class Cost:
    """Sums of a step over so many runs."""

    runs: int = 0
    executor_us: float = 0
    mysqld_us: float = 0
    statements: Counter[str] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

    def per_run(self) -> dict[str, float]:
        return {
            "executor_us": self.executor_us / self.runs,
            "mysqld_us": self.mysqld_us / self.runs,
            "statements": self.statements.total() / self.runs,
            "written": sum(self.status[f"Innodb_rows_{what}"] for what in ("inserted", "updated", "deleted"))
            / self.runs,
            "read": self.status["Innodb_rows_read"] / self.runs,
            "to_mysqld": self.status["Bytes_received"] / self.runs,
            "from_mysqld": self.status["Bytes_sent"] / self.runs,
            "redo": self.status["Innodb_os_log_written"] / self.runs,
            "binlog": self.status["binlog"] / self.runs,
        }


class Worker:
    """One worker on one shard, its stages run by hand; what they use is added up by step."""

    def __init__(self, here: World, sink: Sink) -> None:
        self.costs: dict[str, Cost] = {}
        self.planned: list[HeldRun] = []
        self.clock = SystemClock()
        self.held = HeldRuns(self.clock.now_ms(), HELD_MAX)
        self._here = here
        self._sink = sink
        self._statements: Counter[str] = Counter()
        self._events = Events()
        self._events.subscribe(self._told)
        self._shard = Shard(here.settings.shards[0], 0, events=self._events, keys=keys_of(here.settings))
        self._beat_shard = Shard(here.settings.shards[0], 0, connections_max=1)
        self._probe = Shard(here.settings.shards[0], 0, connections_max=1, wait_timeout_s=3_600)

    async def open(self) -> Worker:
        clock, events, settings = self.clock, self._events, self._here.settings
        partitions = await placed_partitions(self._shard, 1, events)
        guard = Guard(LOOPBACK)
        self.lease = Lease(self._beat_shard, partitions, settings, clock, events, lambda: None)
        while len(self.lease.partitions) < len(partitions):
            await self.lease.run_once(clock.now_ms())
        self._heartbeat = Service("heartbeat", self.lease.run_once, settings.heartbeat_ms, clock, events)
        self._heartbeat.start()
        versions, forecast = Versions(guard), Forecast(self._shard, self.lease)
        self.plan = Plan(
            self._shard, self.lease, forecast, self.held, self.planned.extend, versions, settings, clock, events,
            lambda *_: False
        )
        self.claim = Claim(
            self._shard, self.lease, partitions, self.held, self.planned.extend, versions, clock, events,
            lambda *_: False,
        )  # fmt: skip
        self.settle = Settle(self._shard, self.held, clock, events, lambda *_: False, lambda: False)
        self._client = HttpClient(asyncio.get_running_loop(), clock, guard, DnsResolver())
        listeners = FleetListeners(self._beat_shard, guard, clock)
        tenancy = Tenancy(Tenants(self._beat_shard, clock), listeners, events)
        self._tenancy = tenancy
        leases, settles = [self.lease], [self.settle]
        self.fire = Fire(self.held, leases, self._client, tenancy.known, lambda: RELEASED, settles, clock, events)
        return self

    async def close(self) -> None:
        await self._heartbeat.stop()
        self.fire.stop()
        await self._client.close()
        for shard in (self._shard, self._beat_shard, self._probe):
            await shard.close()

    @asynccontextmanager
    async def measured(self, step: str, runs: int) -> AsyncIterator[None]:
        """What the block uses is this step's, for so many runs."""
        await asyncio.sleep(BETWEEN_S)
        status, mysqld_s = await self._status(), cpu_s(self._here.mysqld_pids())
        self._statements.clear()
        executor_ns = cpu_ns()
        yield
        cost = self.costs.setdefault(step, Cost())
        cost.executor_us += (cpu_ns() - executor_ns) / 1_000
        cost.mysqld_us += (cpu_s(self._here.mysqld_pids()) - mysqld_s) * 1e6
        cost.statements.update(self._statements)
        cost.runs += runs
        cost.status.update(await self._status())
        cost.status.subtract(status)
        progress(f"{step}: {runs:,} runs")

    async def plan_all(self, now_ms: int) -> None:
        while await self.plan.run_once(now_ms):
            pass

    async def claim_all(self, now_ms: int) -> None:
        while await self.claim.run_once(now_ms):
            pass

    def take_planned(self) -> list[HeldRun]:
        """What has been claimed since it was asked last."""
        taken = list(self.planned)
        self.planned.clear()
        return taken

    async def fire_all(self, runs: Sequence[HeldRun]) -> None:
        """From being held to being answered; their outcomes wait to be settled."""
        for tenant_id in {run.tenant_id for run in runs}:
            self._tenancy.known(tenant_id)
        await self._tenancy.run_once(self.clock.now_ms())
        self.fire.hold(runs)
        deadline_ms = self.clock.now_ms() + FIRE_S_MAX * 1000
        while len(self.settle) < len(runs):
            if self.clock.now_ms() > deadline_ms:
                raise OperatorError(f"{len(self.settle)} of {len(runs)} calls were answered in {FIRE_S_MAX} s")
            await asyncio.sleep(0.1)
        if self._client.requests != len(runs):
            raise OperatorError(f"{self._client.requests} requests for {len(runs)} runs")

    async def settle_all(self) -> None:
        while len(self.settle):
            await self.settle.run_once(self.clock.now_ms())

    def fail(self, runs: Sequence[HeldRun]) -> None:
        """As if each had been answered with 503."""
        now_ms = self.clock.now_ms()
        for run in runs:
            self.settle.settled(run, Outcome(OutcomeKind.ANSWERED, 503, None, b"busy", now_ms, now_ms, True, "", ""))

    def _told(self, name: str, fields: dict[str, Any]) -> None:
        if name == "statement.ended":
            self._statements[fields["statement"]] += 1

    async def _status(self) -> Counter[str]:
        async with self._probe.connection() as connection:
            rows = (await connection.run(b"SHOW GLOBAL STATUS")).rows
        found = Counter({name: int(value) for name, value in rows if name in STATUS})
        data = self._here.folder / "mysql-1" / "data"
        found["binlog"] = sum(file.stat().st_size for file in data.glob("binlog.[0-9]*"))
        return found


async def measure(here: World, sink: Sink, runs: int) -> tuple[dict[str, Cost], dict[str, float]]:
    """Each step once, in the order of a run's life; and the bytes of a stored job and run."""
    async with here.opened():
        tenants = await here.create_tenants(1)
        worker = await Worker(here, sink).open()
        at_ms = worker.clock.now_ms() // 1000 * 1000 + SOON_MS
        jobs = load.burst(tenants, load.origins_of(sink, 0, tls=False), at_ms, runs).jobs
        try:
            await _single_runs(here, worker, jobs)
            await _daily_runs(here, worker, jobs, at_ms + AHEAD_MS)
            stored = await _stored_bytes(here.shards[0])
        finally:
            await worker.close()
    return worker.costs, stored


async def _single_runs(here: World, worker: Worker, jobs: Sequence[Job]) -> None:
    """Planned for the first time, fired, settled."""
    await here.create_jobs(jobs)
    async with worker.measured("plan, version new", len(jobs)):
        await worker.plan_all(worker.clock.now_ms())
    planned = worker.take_planned()
    if len(planned) != len(jobs):
        raise OperatorError(f"{len(planned)} of {len(jobs)} runs were planned")
    async with worker.measured("fire", len(jobs)):
        await worker.fire_all(planned)
    async with worker.measured("settle", len(jobs)):
        await worker.settle_all()


async def _daily_runs(here: World, worker: Worker, jobs: Sequence[Job], at_ms: int) -> None:
    """Planned on a second day, when their versions are known; failed, and claimed for a further try."""
    await here.create_jobs([_daily(job, at_ms) for job in jobs])
    await worker.plan_all(at_ms - PLANNED_AHEAD_MS)
    worker.take_planned()
    async with worker.measured("plan, version known", len(jobs)):
        await worker.plan_all(at_ms + DAY_MS - PLANNED_AHEAD_MS)
    second_day = worker.take_planned()
    async with worker.measured("settle, to be tried again", len(jobs)):
        worker.fail(second_day)
        await worker.settle_all()
    async with worker.measured("claim", len(jobs)):
        await worker.claim_all(worker.clock.now_ms() + BACKOFF_MS_MAX)


async def _stored_bytes(shard: Shard) -> dict[str, float]:
    """Bytes on disk of a job with its version, and of a run, indexes and half-filled pages included."""
    async with shard.connection() as connection:
        pages = {}
        for table in ("jobs", "job_versions", "runs"):
            await connection.run(f"ANALYZE TABLE {table}".encode())
            rows = (await connection.run(f"SHOW TABLE STATUS LIKE '{table}'".encode())).rows
            pages[table] = (rows[0][6] + rows[0][8]) / max(1, rows[0][4])
    return {"job": round(pages["jobs"] + pages["job_versions"]), "run": round(pages["runs"])}


def _daily(job: Job, at_ms: int) -> Job:
    return job._replace(name=f"daily-{job.name}", definition=replace(job.definition, schedule=load.daily(at_ms)))


def document(costs: dict[str, Cost]) -> dict[str, Any]:
    """The figures for a run, by step."""
    return {step: {name: round(value, 4) for name, value in cost.per_run().items()} for step, cost in costs.items()}


def report(figures: dict[str, Any], about: str) -> Iterator[str]:
    """The figures beside the model, as Markdown."""
    yield from HEAD.format(about=about).splitlines()
    yield _row(
        "step",
        "executor µs",
        "mysqld µs",
        "model",
        "statements",
        "model",
        "rows written",
        "model",
        "rows read",
        "model",
    )
    yield "|" + "---|" * 10
    for step, model in MODEL.items():
        found = figures[step]
        yield _row(
            step, f"{found['executor_us']:.1f}", f"{found['mysqld_us']:.1f}", f"{model.mysqld_us:.1f}",
            f"{found['statements']:.4f}", f"{model.statements:.4f}", f"{found['written']:.2f}", f"{model.written:g}",
            f"{found['read']:.2f}", f"{model.read:g}",
        )  # fmt: skip
    yield from BYTES.splitlines()
    yield _row("step", "to MySQL", "from MySQL", "redo log", "binlog")
    yield "|" + "---|" * 5
    for step in MODEL:
        yield _row(step, *(f"{figures[step][name]:.0f}" for name in ("to_mysqld", "from_mysqld", "redo", "binlog")))
    yield from WHOLE.splitlines()
    yield _row("path", "executor µs", "mysqld µs", "model", "binlog bytes")
    yield "|" + "---|" * 5
    for path, steps in PATHS.items():
        sums = {name: sum(figures[step][name] for step in steps) for name in ("executor_us", "mysqld_us", "binlog")}
        model_us = sum(MODEL[step].mysqld_us for step in steps)
        yield _row(
            path, f"{sums['executor_us']:.0f}", f"{sums['mysqld_us']:.0f}", f"{model_us:.0f}", f"{sums['binlog']:.0f}"
        )


def _stored_lines(stored: dict[str, float]) -> list[str]:
    return [
        "",
        "## On disk",
        "",
        *(f"* a {what}: {size:,.0f} bytes, indexes included" for what, size in stored.items()),
    ]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


HEAD = """\
# What one run costs

Written by `perf/cost.py`: {about}.

Each step runs alone, so that its CPU time is its own: `executor µs` is the worker's process, `mysqld µs` all threads of
the server, whatever they do. The model is the sum of the statements' shapes, each measured alone
with 2,000 sorted rows: select due jobs 1.9 µs, insert runs 7.9 and a quarter more for the index by job, advance
`next_run_at` 24.1, settle 10.9 and a tenth more, look up by key 4. What is above it is left to explain or to save.

"""
BYTES = """
## Bytes of a run

Redo log and binlog reach the disk twice in a commit; a batch of 1,000 runs shares both.

"""
WHOLE = """
## A run's life

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000, help="in each step (20,000)")
    args = parser.parse_args()
    calm_collector()
    with world(progress, shard_count=1) as here:
        costs, stored = uvloop.run(measure(here, here.start_sink(), args.runs))
    figures = document(costs)
    today = datetime.now(UTC).date()
    about = f"{args.runs:,} runs in each step, {os.cpu_count()} cores, {today}"
    (FOLDER / "cost.json").write_text(json.dumps({"per_run": figures, "stored_bytes": stored}, indent=1) + "\n")
    (FOLDER / "cost.md").write_text("\n".join([*report(figures, about), *_stored_lines(stored)]) + "\n")


if __name__ == "__main__":
    main()
