"""Planning alone: due jobs become durable runs by the real stage, one process for each core, and nothing is fired.

Beside it the usual way of schedulers that keep their jobs in a database: each job in a transaction of its own, found
with FOR UPDATE SKIP LOCKED, by several connections at once.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import uvloop

from bench import load
from bench.load import Origins
from bench.rounds import Progress, count
from bench.world import LOOPBACK, World, world
from engine.clock import SystemClock, cpu_ns
from engine.config import Settings
from engine.errors import OperatorError
from engine.events import Events
from engine.model import Priority, RunState, Trigger
from engine.outbound.target import Guard
from engine.process import calm_collector
from engine.service import Service
from engine.settings import keys_of
from engine.stages.forecast import Forecast
from engine.stages.held import HeldRuns
from engine.stages.lease import Lease
from engine.stages.plan import URGENT_MS, Plan
from engine.stages.versions import Versions
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard

NOWHERE = Origins(lambda number: "http://127.0.0.1:9", "")
# Jobs that are only stored are due in a day.
LATER_MS = 86_400_000
STORED_AT_ONCE = 50_000
ONE_BY_ONE_RUNS = 2_000
ONE_BY_ONE_CONNECTIONS = 8
WORKER_S_MAX = 600
HELD_MAX = 10_000_000
SHARE_EVERY_S = 0.05


class Planned(NamedTuple):
    """What one process planned, and when its last commit was, milliseconds since the epoch."""

    runs: int
    last_ms: int
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=50_000, metavar="N", help="due at once (50,000)")
    parser.add_argument("--stored", type=int, default=0, metavar="N", help="jobs beside them that are not due (0)")
    parser.add_argument("--rounds", type=count, default=1, metavar="N", help="of so many runs each (1)")
    parser.add_argument("--alone", action="store_true", help="without what a user would pick instead")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress) as here:
        tenant = asyncio.run(_prepare(here, args.stored))
        figures = _measure(here, tenant, args.runs, args.rounds)
        if not args.alone:
            figures |= asyncio.run(_one_by_one(here, tenant, min(args.runs, ONE_BY_ONE_RUNS)))
    return figures


async def _prepare(here: World, stored: int) -> int:
    async with here.opened():
        tenant = (await here.create_tenants(1))[0]
        later_ms = SystemClock().now_ms() + LATER_MS
        for first in range(0, stored, STORED_AT_ONCE):
            jobs = load.burst([tenant], NOWHERE, later_ms, min(STORED_AT_ONCE, stored - first)).jobs
            await here.create_jobs([job._replace(name=f"stored-{first}-{job.name}") for job in jobs])
    return tenant


def _measure(here: World, tenant: int, runs: int, rounds: int) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    workers = []
    for core in sorted(os.sched_getaffinity(0)):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_worker, args=(here.settings, core, theirs), daemon=True)
        process.start()
        workers.append((process, ours))
    pipes = [pipe for _, pipe in workers]
    try:
        _answers(pipes)  # each holds its partitions
        planned_ms, used_s, worker_s = 0, 0.0, 0.0
        for number in range(rounds):
            begun_ms = asyncio.run(_store_due(here, tenant, runs, number))
            before = here.cpu().mysqld
            for pipe in pipes:
                pipe.send(runs)
            planned = _answers(pipes)
            if sum(each.runs for each in planned) != runs:
                raise OperatorError(f"{sum(each.runs for each in planned)} of {runs} runs were planned")
            planned_ms += max(each.last_ms for each in planned) - begun_ms
            used_s += here.cpu().mysqld - before
            worker_s += sum(each.cpu_s for each in planned)
            here.progress(
                f"round {number + 1} of {rounds}: {runs * (number + 1) * 1000 / planned_ms:,.0f} runs a second"
            )
    finally:
        for process, pipe in workers:
            pipe.close()
            process.join(10)
            process.kill()
    total = runs * rounds
    return {
        "runs_per_s": round(total * 1000 / planned_ms),
        "mysqld_us_per_run": round(used_s * 1e6 / total, 1),
        "planner_us_per_run": round(worker_s * 1e6 / total, 1),
    }


def _answers(pipes: Sequence[Any]) -> list[Any]:
    """One from each; OperatorError where one says what went wrong, or nothing."""
    answers = []
    for pipe in pipes:
        if not pipe.poll(WORKER_S_MAX):
            raise OperatorError(f"a planner did not answer within {WORKER_S_MAX} s")
        answers.append(pipe.recv())
        if isinstance(answers[-1], str):
            raise OperatorError(answers[-1])
    return answers


async def _store_due(here: World, tenant: int, runs: int, number: int) -> int:
    async with here.opened():
        # Within the horizon, and above the mark of a fleet that was created in this second.
        at_ms = (SystemClock().now_ms() // 1000 + 1) * 1000
        jobs = load.burst([tenant], NOWHERE, at_ms, runs).jobs
        return await here.create_jobs_at_once([job._replace(name=f"due-{number}-{job.name}") for job in jobs])


def _worker(settings: Settings, core: int, pipe: Pipe) -> None:
    """The body of a process: plans whatever is due each time it is told to."""
    os.sched_setaffinity(0, {core})
    calm_collector()
    try:
        uvloop.run(_plan_when_told(settings, pipe))
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception as error:
        pipe.send(f"planner: {type(error).__name__}: {error}")


async def _plan_when_told(settings: Settings, pipe: Pipe) -> None:
    clock, events = SystemClock(), Events()
    versions, held = Versions(Guard(LOOPBACK)), HeldRuns(clock.now_ms(), HELD_MAX)
    plans = []
    for index, dsn in enumerate(settings.shards):
        shard, beat_shard = Shard(dsn, index, keys=keys_of(settings)), Shard(dsn, index, connections_max=1)
        partitions = await placed_partitions(shard, len(settings.shards), events)
        lease = Lease(beat_shard, partitions, settings, clock, events, lambda: None)
        await _own_fair_share(lease, settings, clock)
        Service("heartbeat", lease.run_once, settings.heartbeat_ms, clock, events).start()
        forecast = Forecast(shard, lease)
        plans.append(Plan(shard, lease, forecast, held, held.add, versions, settings, clock, events, _nobody))
    pipe.send(None)
    while True:
        await asyncio.to_thread(pipe.recv)
        runs_before, cpu_before_ns = len(held), cpu_ns()
        ends_ms = await asyncio.gather(*(_plan_all(plan, clock) for plan in plans))
        pipe.send(Planned(len(held) - runs_before, max(ends_ms), (cpu_ns() - cpu_before_ns) / 1e9))


def _nobody(*_: object) -> bool:
    return False


async def _own_fair_share(lease: Lease, settings: Settings, clock: SystemClock) -> None:
    """Heartbeats until every planner is there and the partitions are shared out."""
    planners, previous = len(os.sched_getaffinity(os.getppid())), -1
    while lease.live_workers != planners or len(lease.partitions) != previous:
        previous = len(lease.partitions)
        await lease.run_once(clock.now_ms())
        await asyncio.sleep(SHARE_EVERY_S)


async def _plan_all(plan: Plan, clock: SystemClock) -> int:
    """Plan until nothing is due; returns when the last batch was committed."""
    ended_ms = 0
    while await plan.run_once(clock.now_ms()):
        ended_ms = clock.now_ms()
    return ended_ms


async def _one_by_one(here: World, tenant: int, runs: int) -> dict[str, Any]:
    """Each job in a transaction of its own."""
    begun_ms = await _store_due(here, tenant, runs, -1)
    before = here.cpu().mysqld
    async with here.opened():
        workers = [_plan_singly(shard) for shard in here.shards for _ in range(ONE_BY_ONE_CONNECTIONS)]
        planned = sum(await asyncio.gather(*workers))
    took_ms = SystemClock().now_ms() - begun_ms
    if planned != runs:
        raise OperatorError(f"{planned} of {runs} runs were planned one by one")
    return {
        "one_by_one_runs_per_s": round(runs * 1000 / took_ms),
        "one_by_one_mysqld_us_per_run": round((here.cpu().mysqld - before) * 1e6 / runs, 1),
    }


async def _plan_singly(shard: Shard) -> int:
    partitions = [row[0] for row in (await shard.execute("placed_partitions")).rows]
    planned = 0
    while await shard.retrying(lambda: _plan_one(shard, partitions)):
        planned += 1
    return planned


async def _plan_one(shard: Shard, partitions: Sequence[int]) -> bool:
    now_ms = SystemClock().now_ms()
    async with shard.transaction() as connection:
        rows = (
            await connection.execute(
                "lock_due_jobs",
                {
                    "partitions": partitions,
                    "priority": Priority.NORMAL,
                    "due_after": -1,
                    "horizon_at": now_ms + URGENT_MS,
                    "rows_max": 1,
                },
            )
        ).rows
        if not rows:
            return False
        partition, job, tenant, version, at_ms, _ = rows[0]
        run = (
            partition,
            at_ms,
            job,
            tenant,
            version,
            RunState.WAITING,
            Priority.NORMAL,
            Trigger.SCHEDULE,
            0,
            None,
            None,
        )
        await connection.execute_rows("insert_runs", [run], bytes_max=shard.packet_bytes_max)
        advance = (partition, job, version, at_ms, None, at_ms)
        await connection.execute_rows("advance_jobs", [advance], bytes_max=shard.packet_bytes_max)
    return True
