"""Function runs a second through the work protocol, their start lag at a steady rate, and what waiting workers cost.

MySQL, engine, API and the workers share the machine's cores. A run counts when its worker has the answer to its
`:complete`; its lag is from its scheduled time to the claim's answer.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from bench.rounds import Progress, count
from bench.usage import cpu_s
from bench.workers import Connection, Start, Worker
from bench.world import Job, World, world
from engine.clock import SystemClock
from engine.model import Definition, FunctionTarget, RunAt
from engine.store.admin import set_limits
from engine.store.tenants import create_tenant

FUNCTION = "bench.nothing"
WORKERS = 5
AHEAD_MS = 8_000
LEFT_S_MAX = 60
POLL_S = 0.05
SETTLE_S = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=20_000, metavar="N", help="due at once (20,000)")
    parser.add_argument("--slots", type=count, default=50, metavar="N", help="of five workers together (50)")
    parser.add_argument("--rate", type=count, default=500, metavar="N", help="runs a second for the lag (500)")
    parser.add_argument("--seconds", type=count, default=20, metavar="S", help="at that rate (20)")
    parser.add_argument("--waiting", type=count, default=1_000, metavar="N", help="workers that wait (1,000)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress) as here:
        here.start_engine()
        url = here.start_api()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(here, url, args))


async def _measure(here: World, url: str, args: argparse.Namespace) -> dict[str, Any]:
    async with here.opened():
        created = await create_tenant(here.shards[0], "bench")
        await set_limits(here.shards[0], "bench", {"requests_per_s": 10**6})
        burst = await _burst(here, url, created.tenant_id, created.api_key, args)
        steady = await _steady(here, url, created.tenant_id, created.api_key, args)
        here.stop_engine()  # what is asked then, the API asks
        waiting = await _waiting(here, url, created.api_key, args.waiting)
    return burst | steady | waiting


async def _burst(here: World, url: str, tenant_id: int, key: str, args: argparse.Namespace) -> dict[str, Any]:
    at_ms = (SystemClock().now_ms() + AHEAD_MS) // 1000 * 1000
    jobs = [_job(tenant_id, f"burst-{number}", at_ms) for number in range(args.runs)]
    await here.create_jobs_at_once(jobs)
    before, api_before_s = here.cpu(), cpu_s(here.api_pids())
    starts = await _worked(here, url, key, args.slots, len(jobs), at_ms)
    if not starts:
        return {"runs": 0}
    api_us = (cpu_s(here.api_pids()) - api_before_s) * 1e6 / len(starts)
    spent = here.cpu().us_per_run(before, len(starts))
    spent_ms = max(start.ended_ms for start in starts) - at_ms
    doubled = len(starts) - len({start.job for start in starts})
    return {
        "runs": len(starts),
        "lost": args.runs - len({start.job for start in starts}),
        "duplicates": doubled,
        "runs_per_s": round(len(starts) * 1000 / spent_ms),
        "api_us_per_run": round(api_us, 1),
        "mysqld_us_per_run": spent["mysqld_us_per_run"],
        "executor_us_per_run": spent["executor_us_per_run"],
    }


async def _steady(here: World, url: str, tenant_id: int, key: str, args: argparse.Namespace) -> dict[str, Any]:
    first_ms = (SystemClock().now_ms() + AHEAD_MS) // 1000 * 1000
    jobs = [
        _job(tenant_id, f"steady-{second}-{number}", first_ms + second * 1000)
        for second in range(args.seconds)
        for number in range(args.rate)
    ]
    await here.create_jobs_at_once(jobs)
    starts = await _worked(here, url, key, args.slots, len(jobs), first_ms + args.seconds * 1000)
    lags_ms = sorted(start.started_ms - start.scheduled_at_ms for start in starts)
    return {
        "steady_runs": len(lags_ms),
        "early": sum(lag_ms < 0 for lag_ms in lags_ms),
        "lag_p50_ms": lags_ms[len(lags_ms) // 2],
        "lag_p99_ms": lags_ms[len(lags_ms) * 99 // 100],
        "lag_max_ms": lags_ms[-1],
    }


async def _worked(here: World, url: str, key: str, slots: int, runs: int, due_ms: int) -> list[Start]:
    """All that five workers have done once so many runs are, or a minute after they were due."""
    starts: list[Start] = []
    workers = [Worker(url, key, [FUNCTION], slots // WORKERS, starts) for _ in range(WORKERS)]
    tasks = [asyncio.get_running_loop().create_task(worker.run()) for worker in workers]
    await _until(lambda: len(starts) >= runs, due_ms + LEFT_S_MAX * 1000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    refused = sum(worker.refused for worker in workers)
    here.progress(f"{len(starts):,} of {runs:,} done, {refused} answers that were none")
    return starts


async def _until(condition: Callable[[], bool], deadline_ms: int) -> None:
    clock = SystemClock()
    while not condition() and clock.now_ms() < deadline_ms:  # noqa: ASYNC110 - what it waits for grows in many places
        await asyncio.sleep(POLL_S)


async def _waiting(here: World, url: str, key: str, workers: int) -> dict[str, Any]:
    """What so many workers cost that wait in vain, 20 s at a time: CPU of the API, statements of a shard."""
    body = b'{"functions": ["bench.never"], "wait": "20s"}'
    connections = [Connection(url, key) for _ in range(workers)]

    async def wait_on(connection: Connection) -> None:
        while True:
            await connection.post("/v1/work:claim", body)

    tasks = [asyncio.get_running_loop().create_task(wait_on(connection)) for connection in connections]
    await asyncio.sleep(SETTLE_S)
    begun = SystemClock().boot_ms(), cpu_s(here.api_pids()), await _questions(here)
    await asyncio.sleep(20)
    ended = SystemClock().boot_ms(), cpu_s(here.api_pids()), await _questions(here)
    for task in tasks:
        task.cancel()
    seconds = (ended[0] - begun[0]) / 1000
    return {
        "waiting_workers": workers,
        "waiting_api_core": round((ended[1] - begun[1]) / seconds, 4),
        "waiting_statements_per_s": round((ended[2] - begun[2]) / seconds, 1),
    }


async def _questions(here: World) -> int:
    """Statements of a shard so far, of all sessions."""
    async with here.shards[-1].connection() as connection:
        answer = await connection.run(
            b"SELECT variable_value FROM performance_schema.global_status WHERE variable_name = 'Questions'"
        )
    return int(answer.rows[0][0])


def _job(tenant_id: int, name: str, at_ms: int) -> Job:
    return Job(tenant_id, name, Definition(RunAt(at_ms), FunctionTarget(FUNCTION)))
