"""A peak: many jobs due in one second, how late each call reaches its receiver, and none lost, doubled or early.

Everything is on this machine: two MySQL shards, the engine, and the receiver, an nginx, by whose log it is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import load
from bench.chart import write_chart
from bench.instead import run_instead
from bench.load import Load, Origins
from bench.profiled import profiled
from bench.rounds import Progress, count
from bench.usage import resident_bytes
from bench.world import Cpu, World, world
from engine.clock import SystemClock
from engine.errors import OperatorError
from engine.local.nginx import Sink
from engine.local.record import Call, Report, first_lags, report, reports
from engine.rules.quota import TENANT_STARTS_PER_S

# The engine plans 30 s ahead; a large second is to have that much.
AHEAD_S = 35
STORED_PER_S = 8_000
# What has not come so long after its second is lost. Two thousand a second is a tenth of what this is built for.
LATE_MS_MAX = 20_000
CALLS_PER_MS_MIN = 2
DOUBLES_S = 1.0
# Heartbeats and looking for work go on all the time; their share is not the runs'.
REST_S = 4.0
# So long before its second nearly every run of it is prepared: its head is built, its connection open.
PREPARED_MS = 200
# A backlog is so late when the engine starts, and what is on time beside it is due so long after that.
LATE_S, LATE_AHEAD_S, LATE_AHEAD_MS_MIN = 90, 12, 3_000
LATE_STORED_PER_S = 3_500
# APScheduler's own store makes some hundred a second.
APSCHEDULER_RUNS = 1_000
INSTEAD_AHEAD_MS = 15_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=10_000, metavar="N", help="due in one second (10,000)")
    parser.add_argument("--critical", type=int, default=0, metavar="N", help="of them critical, the others normal (0)")
    parser.add_argument("--origins", type=count, default=1, metavar="N", help="endpoints, each at an address (1)")
    parser.add_argument("--tls", action="store_true", help="the endpoints speak TLS")
    parser.add_argument("--model", choices=["morning"], help="1,000 tenants, 50,000 jobs, most due at a full minute")
    parser.add_argument("--idle", type=count, metavar="SECONDS", help="instead one run a second for so long")
    parser.add_argument("--late", type=int, default=0, metavar="N", help="beside a backlog of N, 90 s late already (0)")
    parser.add_argument("--ahead", type=count, default=AHEAD_S, metavar="S", help="from stored to due, at least (35)")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the lag as SVG")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of an executor: .svg a flame graph, else stacks")
    parser.add_argument("--alone", action="store_true", help="without what a user would pick instead")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    if args.critical > args.runs:
        raise OperatorError(f"--critical {args.critical} is more than --runs {args.runs}")
    with world(progress) as here, _dead_endpoint() as dead_port:
        sink = _start_sink(here, args)
        if args.late:
            return _beside_late(here, sink, args)
        here.start_engine({"SSL_CERT_FILE": str(sink.certificate)} if args.tls else None)
        rest = _rest(here)
        made = asyncio.run(_store(here, sink, dead_port, args))
        with profiled(here.engine_pids("executor")[0], args.profile):
            costs = _watch(here, made, rest)
        here.stop_engine()
        calls = list(sink.calls())
        found = _figures(calls, made) | ({} if args.idle else costs)
        if args.chart:
            _draw(args.chart, calls, made)
        if not (args.alone or args.idle or args.model or args.tls):
            found |= _instead(here, sink, args.runs)
    return found


def _beside_late(here: World, sink: Sink, args: argparse.Namespace) -> dict[str, Any]:
    """Runs of every priority on time while a backlog is caught up with: both are stored before the engine starts."""
    clock = SystemClock()
    stored_ms = clock.now_ms() + (args.runs + args.late) * 1000 // LATE_STORED_PER_S

    async def store() -> Load:
        async with here.opened():
            tenants = await here.create_tenants(-(-(args.runs + args.late) // TENANT_STARTS_PER_S))
        # So many jobs take longer to think of than a connection may be silent.
        origins = load.origins_of(sink, 0, tls=False)
        at_ms = (stored_ms // 1000 + LATE_AHEAD_S) * 1000
        made = load.late_beside(tenants, origins, at_ms, args.runs, args.late, (LATE_S + LATE_AHEAD_S) * 1000)
        async with here.opened():
            await here.create_jobs(made.jobs)
        return made

    made = asyncio.run(store())
    time.sleep(max(0, made.at_ms - LATE_AHEAD_S * 1000 - clock.now_ms()) / 1000)
    here.start_engine()
    if clock.now_ms() > made.at_ms - LATE_AHEAD_MS_MIN:
        raise OperatorError("storing the jobs took too long; give fewer")
    here.progress(f"on time in {(made.at_ms - clock.now_ms()) / 1000:.1f} s")
    runs = len(made.expected)
    here.until_called(runs, made.at_ms + LATE_MS_MAX + runs // CALLS_PER_MS_MIN)
    here.until_settled()
    calls = list(sink.calls())
    before = sum(call.scheduled_at_ms < made.at_ms and call.arrival_ms < made.at_ms for call in calls)
    return _figures(calls, made) | {"late_called_before_the_second": before}


def _start_sink(here: World, args: argparse.Namespace) -> Sink:
    addresses = [load.address(number) for number in range(args.origins)] if args.tls else []
    return here.start_sink(tls=args.tls, tls_addresses=addresses)


async def _store(here: World, sink: Sink, dead_port: int, args: argparse.Namespace) -> Load:
    """Jobs for a second that comes late enough to be planned for."""
    clock = SystemClock()
    async with here.opened():
        tenants = await here.create_tenants(
            load.MORNING_TENANTS if args.model else -(-args.runs // TENANT_STARTS_PER_S)
        )
        made = _load(args, tenants, load.origins_of(sink, dead_port, tls=args.tls), clock.now_ms())
        await here.create_jobs(made.jobs)
    left_ms = made.at_ms - clock.now_ms()
    if left_ms < args.ahead * 500:
        raise OperatorError(f"storing the jobs took too long: only {left_ms / 1000:.1f} s are left; give more --ahead")
    return made


def _rest(here: World) -> tuple[Cpu, Cpu]:
    """What the processes have used before and after doing nothing for a while."""
    before = here.cpu()
    time.sleep(REST_S)
    return before, here.cpu()


def _watch(here: World, made: Load, rest: tuple[Cpu, Cpu]) -> dict[str, float]:
    """Wait until all of it has been called and settled; what each kind of process used for a run, and the most that
    the executors held of it in memory, just before its second.
    """
    clock, before, runs = SystemClock(), here.cpu(), len(made.expected)
    empty_bytes = resident_bytes(here.engine_pids("executor"))
    here.progress(f"due in {(made.at_ms - clock.now_ms()) / 1000:.1f} s")
    time.sleep(max(0, made.at_ms - clock.now_ms() - PREPARED_MS) / 1000)
    held_bytes = resident_bytes(here.engine_pids("executor")) - empty_bytes
    here.until_called(runs, made.last_ms + LATE_MS_MAX + runs // CALLS_PER_MS_MIN)
    here.until_settled()
    time.sleep(DOUBLES_S)
    memory = {"executor_mb_per_100k_runs": round(held_bytes * 100_000 / runs / 1e6, 1)}
    return here.cpu().us_per_run(before, runs, rest) | memory


def _load(args: argparse.Namespace, tenants: list[int], origins: Origins, now_ms: int) -> Load:
    jobs = load.MORNING_JOBS if args.model else 1 if args.idle else args.runs
    earliest_ms = now_ms + args.ahead * 1000 + jobs * 1000 // STORED_PER_S
    if args.model:
        first_ms = earliest_ms + load.AROUND_S * 1000
        return load.morning(tenants, origins, (first_ms // load.MINUTE_MS + 1) * load.MINUTE_MS)
    at_ms = (earliest_ms // 1000 + 1) * 1000
    if args.idle:
        return load.every_second(tenants[0], origins, at_ms, args.idle)
    return load.burst(tenants, origins, at_ms, args.runs, args.critical, args.origins)


def _figures(calls: Iterable[Call], load: Load) -> dict[str, Any]:
    ours = [call for call in calls if not call.name.startswith("instead-")]
    priorities = reports(ours, load.expected, lambda name: name.partition("-")[0])
    return {
        **_shown(report(ours, load.expected)),
        "per_priority": {name: _shown(found) for name, found in priorities.items()},
    }


def _shown(found: Report) -> dict[str, int]:
    return {
        "runs": found.expected,
        "lost": found.lost,
        "duplicates": found.doubled,
        "early": found.early,
        "lag_p50_ms": found.lag_p50_ms,
        "lag_p99_ms": found.lag_p99_ms,
        "lag_max_ms": found.lag_max_ms,
    }


def _instead(here: World, sink: Sink, runs: int) -> dict[str, Any]:
    """The same number of calls by a loop of one's own, and a number that it can make in time by APScheduler."""
    figures: dict[str, Any] = {}
    for way, number in (("asyncio", runs), ("apscheduler", min(runs, APSCHEDULER_RUNS))):
        here.progress(f"{number:,} calls by {way}")
        prefix = f"instead-{way}-"
        at_ms = (SystemClock().now_ms() + INSTEAD_AHEAD_MS) // 1000 * 1000
        run_instead(way, f"http://127.0.0.1:{sink.port}", prefix, number, at_ms, here.folder)
        found = _shown(report([call for call in sink.calls() if call.name.startswith(prefix)]))
        figures |= {f"{way}_{name}": found[name] for name in ("runs", "lag_p50_ms", "lag_p99_ms")}
    return figures


def _draw(file: Path, calls: Iterable[Call], load: Load) -> None:
    of_peak = [call for call in calls if call.scheduled_at_ms == load.at_ms]
    lags = first_lags(sorted(of_peak, key=lambda call: call.arrival_ms))
    write_chart(file, f"{lags.total():,} calls due in one second", lags)


@contextmanager
def _dead_endpoint() -> Iterator[int]:
    """A port where connections wait for ever: nobody accepts them."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        yield int(listener.getsockname()[1])
