"""How much one tenant's load moves another's p99: of calls to the API, and of the lag to the first byte.

A quiet tenant reads, creates a job for the next but one second, and has jobs that are due every second; all of it is
measured alone, then beside a loud one, which reads jobs, their runs and their numbers over many connections, has
thousands of jobs due every second, many more in one second, a backlog that is late already, and endpoints that hang.
What counts is the difference, so both are measured in turns. The lag is the receiver's.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

import orjson

from bench import load
from bench.api import measured_by_wrk
from bench.rounds import Progress, count
from bench.world import Job, World, world
from engine.clock import SystemClock
from engine.local.nginx import Sink
from engine.model import Cron, Definition, HttpTarget
from engine.rules.lag import percentile
from engine.rules.timestamps import format_time
from engine.store.tenants import NewTenant, create_tenant

# What is promised: by no more than this, whichever is larger.
MOVED_MS_MAX, MOVED_SHARE_MAX = 20, 0.20
QUIET_PAUSE_S = 0.05
QUIET_JOBS = 20
HANGING_JOBS = 100
# Jobs whose definition, runs and numbers the loud one reads by turns.
READ_JOBS = 97
# Until jobs that were just stored are planned and warmed.
SETTLE_S = 5
AHEAD_MS = 2_000
LATE_MS = 90_000
BURST_AHEAD_MS = 5_000


class Seen(NamedTuple):
    """99th percentiles of one tenant, in milliseconds."""

    api_p99_ms: float
    lag_p99_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=count, default=20, metavar="S", help="of each turn (20)")
    parser.add_argument("--turns", type=count, default=3, metavar="N", help="alone and beside the other, each (3)")
    parser.add_argument("--runs", type=count, default=1_000, metavar="N", help="of the loud one every second (1,000)")
    parser.add_argument("--burst", type=int, default=10_000, metavar="N", help="of it in one second (10,000)")
    parser.add_argument("--backlog", type=int, default=10_000, metavar="N", help="of it, 90 s late at once (10,000)")
    parser.add_argument("--connections", type=count, default=32, metavar="N", help="of its reads (32)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress) as here:
        sink = here.start_sink()
        here.start_engine()
        url = here.start_api()
        quiet, loud = asyncio.run(_tenants(here))
        alone, beside = [], []
        for turn in range(args.turns):
            progress(f"turn {turn + 1} of {args.turns}: alone")
            alone.append(_measured(here, sink, url, quiet, f"alone-{turn}", args.seconds))
            progress(f"turn {turn + 1} of {args.turns}: beside {args.runs:,} runs a second, {args.connections} readers")
            asyncio.run(_store(here, loud.tenant_id, sink, f"loud-{turn}", args.runs, SETTLE_S + args.seconds))
            pressing = _pressing(here, sink, loud.tenant_id, f"loud-{turn}", args)
            with _reading(here, url, loud, args.connections, SETTLE_S + args.seconds), pressing:
                beside.append(_measured(here, sink, url, quiet, f"beside-{turn}", args.seconds))
            here.until_settled()
    return _compared("api_p99_ms", alone, beside) | _compared("lag_p99_ms", alone, beside)


def _compared(figure: str, alone: list[Seen], beside: list[Seen]) -> dict[str, Any]:
    """Medians of the turns, and whether the promise holds."""
    before, after = (sorted(getattr(seen, figure) for seen in turns)[len(turns) // 2] for turns in (alone, beside))
    allowed = max(MOVED_MS_MAX, MOVED_SHARE_MAX * before)
    return {f"alone_{figure}": before, f"beside_{figure}": after, f"{figure}_holds": after - before <= allowed}


async def _tenants(here: World) -> list[NewTenant]:
    async with here.opened():
        return [await create_tenant(here.shards[0], name) for name in ("quiet", "loud")]


async def _store(here: World, tenant_id: int, sink: Sink, name: str, runs: int, seconds: int) -> None:
    """Jobs that are due in each of so many seconds, the first of them after AHEAD_MS."""
    first_ms = (SystemClock().now_ms() + AHEAD_MS) // 1000 * 1000
    every = Cron("* * * * * *", start_at_ms=first_ms, end_at_ms=first_ms + seconds * 1000)
    origins = load.origins_of(sink, 0, tls=False)
    hanging = HANGING_JOBS if name.startswith("loud") else 0
    targets = [f"{origins.url(0)}/{name}-{number}" for number in range(runs)]
    targets += [f"{origins.url(1)}/slow/{name}-hangs-{number}" for number in range(hanging)]
    jobs = [Job(tenant_id, url.rpartition("/")[2], Definition(every, HttpTarget(url))) for url in targets]
    async with here.opened():
        await here.create_jobs(jobs)


@contextmanager
def _pressing(here: World, sink: Sink, tenant_id: int, name: str, args: argparse.Namespace) -> Iterator[None]:
    """While the quiet one is measured: many jobs are there at once that are late, and many that are due in a second."""
    clock, origins = SystemClock(), load.origins_of(sink, 0, tls=False)

    async def store(number: int, runs: int, due_ms: int) -> None:
        jobs = load.burst([tenant_id], origins, due_ms // 1000 * 1000, runs).jobs
        async with here.opened():
            await here.create_jobs_at_once([job._replace(name=f"{name}-pressed-{number}-{job.name}") for job in jobs])

    def store_both() -> None:
        time.sleep(SETTLE_S)
        for number, (runs, due_in_ms) in enumerate(((args.backlog, -LATE_MS), (args.burst, BURST_AHEAD_MS))):
            if runs:
                asyncio.run(store(number, runs, clock.now_ms() + due_in_ms))

    storing = threading.Thread(target=store_both)
    storing.start()
    try:
        yield
    finally:
        storing.join()


def _measured(here: World, sink: Sink, url: str, quiet: NewTenant, name: str, seconds: int) -> Seen:
    asyncio.run(_store(here, quiet.tenant_id, sink, name, QUIET_JOBS, SETTLE_S + seconds))
    time.sleep(SETTLE_S)
    took_ms = _call_api(url, quiet, sink, name, seconds)
    time.sleep(SETTLE_S)
    lags_ms = [call.arrival_ms - call.scheduled_at_ms for call in sink.calls() if call.name.startswith(name)]
    return Seen(percentile(Counter(took_ms), 99), percentile(Counter(lags_ms), 99))


def _call_api(url: str, tenant: NewTenant, sink: Sink, name: str, seconds: int) -> list[int]:
    """Reads and writes by turns, one after the other; microseconds would be the machine's, milliseconds are ours."""
    clock, took_ms = SystemClock(), []
    connection = HTTPConnection(url.partition("://")[2], timeout=30)
    headers = {"Authorization": f"Bearer {tenant.api_key}", "Content-Type": "application/json"}
    target = load.origins_of(sink, 0, tls=False).url(0)
    until_ms = clock.boot_ms() + seconds * 1000
    number = 0
    while clock.boot_ms() < until_ms:
        number += 1
        at = format_time((clock.now_ms() + AHEAD_MS) // 1000 * 1000)
        job = {"schedule": {"run_at": at}, "target": {"http": {"url": f"{target}/{name}-put-{number}"}}}
        for method, body in (("PUT", orjson.dumps(job)), ("GET", None)):
            begun_ms = clock.boot_ms()
            connection.request(method, f"/v1/jobs/{name}-put-{number}", body, headers)
            connection.getresponse().read()
            took_ms.append(clock.boot_ms() - begun_ms)
        time.sleep(QUIET_PAUSE_S)
    connection.close()
    return took_ms


@contextmanager
def _reading(here: World, url: str, tenant: NewTenant, connections: int, seconds: int) -> Iterator[None]:
    lua = f"""wrk.headers["Authorization"] = "Bearer {tenant.api_key}"
local paths = {{"", "/runs", "", "/stats"}}
local count = 0
request = function()
  count = count + 1
  return wrk.format("GET", "/v1/jobs/loud-0-" .. count % {READ_JOBS} .. paths[count % #paths + 1])
end
"""
    script = here.folder / "loud.lua"
    reading = threading.Thread(target=measured_by_wrk, args=(url, lua, script, connections, seconds))
    reading.start()
    try:
        yield
    finally:
        reading.join()
