"""What engine and API use when there is nothing to do: jobs are stored, none is due for a day."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from bench import load
from bench.plan import LATER_MS, NOWHERE
from bench.rounds import Progress, count
from bench.usage import cpu_s, resident_bytes
from bench.world import World, world
from engine.clock import SystemClock

# What a start leaves behind (imports, first heartbeats, the sharing out of partitions) is over by then.
SETTLE_S = 5
MB = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=count, default=10_000, metavar="N", help="stored (10,000)")
    parser.add_argument("--seconds", type=count, default=30, metavar="S", help="of measuring (30)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Shares of one core, and memory; MySQL's apart."""
    with world(progress) as here:
        asyncio.run(_store(here, args.jobs))
        here.start_engine()
        here.start_api()
        time.sleep(SETTLE_S)
        ours, clock = [*here.engine_pids(), *here.api_pids()], SystemClock()
        begun_ms, before_s, mysqld_before_s = clock.boot_ms(), cpu_s(ours), here.cpu().mysqld
        progress(f"measuring {len(ours)} processes for {args.seconds} s")
        time.sleep(args.seconds)
        took_s = (clock.boot_ms() - begun_ms) / 1000
        return {
            "core_percent": round(100 * (cpu_s(ours) - before_s) / took_s, 2),
            "resident_mb": round(resident_bytes(ours) / MB),
            "mysqld_core_percent": round(100 * (here.cpu().mysqld - mysqld_before_s) / took_s, 2),
        }


async def _store(here: World, jobs: int) -> None:
    async with here.opened():
        tenants = await here.create_tenants(1)
        at_ms = SystemClock().now_ms() + LATER_MS
        await here.create_jobs(load.burst(tenants, NOWHERE, at_ms, jobs).jobs)
