"""A backlog: many jobs that are due all at once, planned, fired and settled as fast as it goes.

Everything is on this machine: two MySQL shards, the engine, and the receiver, an nginx, by whose log it is counted.
The time runs from the moment the jobs are there to the last outcome in MySQL.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench import load
from bench.instead import run_instead
from bench.load import Load
from bench.peak import APSCHEDULER_RUNS, INSTEAD_AHEAD_MS
from bench.profiled import profiled
from bench.rounds import Progress, count
from bench.world import POLL_S, SETTLED_S_MAX, Cpu, World, world
from engine.clock import SystemClock
from engine.errors import OperatorError
from engine.local.nginx import Sink
from engine.local.record import report

# A thousand a second is an eleventh of what this is built for.
CALLS_PER_MS_MIN = 1
WAIT_MS_MIN = 20_000


class Spent(NamedTuple):
    """When it began and ended, milliseconds since the epoch, and what was used meanwhile."""

    begun_ms: int
    settled_ms: int
    before: Cpu
    after: Cpu


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=50_000, metavar="N", help="due at once (50,000)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of an executor: .svg a flame graph, else stacks")
    parser.add_argument("--alone", action="store_true", help="without what a user would pick instead")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress, log_level="debug") as here:
        sink = here.start_sink()
        here.start_engine()
        figures = measure(here, sink, args.runs, args.profile)
        if not args.alone:
            figures |= _instead(here, sink, min(args.runs, APSCHEDULER_RUNS))
    return figures


def measure(here: World, sink: Sink, runs: int, profile: Path | None = None) -> dict[str, Any]:
    """The figures of a backlog of so many runs; the engine runs before, and is stopped after it."""
    with profiled(here.engine_pids("executor")[0], profile):
        made, begun_ms, before = asyncio.run(_store(here, sink, runs))
        here.until_called(runs, begun_ms + WAIT_MS_MIN + runs // CALLS_PER_MS_MIN)
    spent = Spent(begun_ms, _last_settled_ms(here, runs), before, here.cpu())
    here.stop_engine()
    return _figures(sink, made, spent)


async def _store(here: World, sink: Sink, runs: int) -> tuple[Load, int, Cpu]:
    """A backlog, when it was there, and what had been used by then."""
    clock = SystemClock()
    async with here.opened():
        tenants = await here.create_tenants(1)
        origins = load.origins_of(sink, 0, tls=False)
        made = load.burst(tenants, origins, clock.now_ms() // 1000 * 1000, runs)
        begun_ms = await here.create_jobs_at_once(made.jobs)
        return made, begun_ms, here.cpu()


def _last_settled_ms(here: World, runs: int) -> int:
    """When the last of so many runs was settled, by the engine's log: health is told twice a second only."""
    deadline_ms = SystemClock().now_ms() + SETTLED_S_MAX * 1000
    while True:
        lines = (here.folder / "log" / "engine.log").read_bytes().rpartition(b"\n")[0].splitlines()
        settled = [orjson.loads(line) for line in lines if b'"run.settled"' in line]
        if sum(line["runs"] for line in settled) >= runs:
            return max(int(line["at_ms"]) for line in settled)
        if SystemClock().now_ms() > deadline_ms:
            raise OperatorError(f"the engine settled too few runs; its log: {here.folder / 'log' / 'engine.log'}")
        time.sleep(POLL_S)


def _figures(sink: Sink, made: Load, spent: Spent) -> dict[str, Any]:
    calls = list(sink.calls())
    if not calls:
        raise OperatorError("the receiver was not called at all")
    found = report(calls, made.expected)
    last_call_ms = max(call.arrival_ms for call in calls)
    return {
        "runs": found.expected,
        "runs_per_s": round(found.called * 1000 / (max(last_call_ms, spent.settled_ms) - spent.begun_ms)),
        "lost": found.lost,
        "duplicates": found.doubled,
        "called_per_s": round(found.called * 1000 / (last_call_ms - spent.begun_ms)),
        **spent.after.us_per_run(spent.before, found.expected),
    }


def _instead(here: World, sink: Sink, runs: int) -> dict[str, float]:
    """APScheduler with a store, from its jobs' second to its last call."""
    here.progress(f"{runs:,} calls by APScheduler")
    at_ms = (SystemClock().now_ms() + INSTEAD_AHEAD_MS) // 1000 * 1000
    run_instead("apscheduler", f"http://127.0.0.1:{sink.port}", "instead-", runs, at_ms, here.folder)
    arrivals = [call.arrival_ms for call in sink.calls() if call.name.startswith("instead-")]
    return {"apscheduler_runs_per_s": round(len(arrivals) * 1000 / (max(arrivals) - at_ms))}
