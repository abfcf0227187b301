"""Durable PUTs, GETs and batches a second of the API, driven by wrk: a Python load would starve what it measures.

wrk, the API and MySQL share the machine's cores, as on a tenant's worst day; every PUT is a new job, committed twice on
disk (redo log and binlog) before it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.rounds import Progress, count
from bench.world import World, world
from engine.errors import OperatorError
from engine.local.nginx import tool
from engine.store.admin import set_limits
from engine.store.tenants import create_tenant

# wrk is given this long to end after its time is over.
GRACE_S = 20
# An answer that takes longer is an error.
TIMEOUT_S = 10
JOB = {
    "schedule": {"cron": "0 9 * * *", "time_zone": "Europe/Paris"},
    "target": {"http": {"url": "https://example.com/hooks/nightly", "headers": {"Content-Type": "application/json"}}},
    "labels": {"team": "billing"},
}
BATCH = 500
READ_NAME = "read"

_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0}


class Measured(NamedTuple):
    """What wrk saw: answers a second, the 99th percentile of the latency, and what was no 2xx."""

    per_s: float
    p99_ms: float
    errors: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=count, default=10, metavar="S", help="of each kind of call (10)")
    parser.add_argument("--connections", type=count, default=64, metavar="N", help="of wrk (64)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """PUTs, GETs and batches, each alone."""
    with world(progress) as here:
        key = asyncio.run(_tenant(here))
        begun_at = time.monotonic()
        url = here.start_api()
        start_s = time.monotonic() - begun_at
        found = {}
        for kind, lua in (("put", _put_lua(key)), ("get", _get_lua(key)), ("batch", _batch_lua(key))):
            progress(f"measuring {kind} for {args.seconds} s")
            connections = args.connections if kind != "batch" else min(8, args.connections)
            found[kind] = measured_by_wrk(url, lua, here.folder / f"{kind}.lua", connections, args.seconds)
    puts, reads, batches = found["put"], found["get"], found["batch"]
    return {
        "puts_per_s": puts.per_s,
        "reads_per_s": reads.per_s,
        "batch_jobs_per_s": batches.per_s * BATCH,
        "p99_ms": max(puts.p99_ms, reads.p99_ms),
        "puts_p99_ms": puts.p99_ms,
        "reads_p99_ms": reads.p99_ms,
        "start_s": start_s,
        "errors": puts.errors + reads.errors + batches.errors,
    }


async def _tenant(here: World) -> str:
    """A tenant whose limit of calls is out of the way."""
    async with here.opened():
        created = await create_tenant(here.shards[0], "bench")
        await set_limits(here.shards[0], "bench", {"requests_per_s": 10**6})
        return created.api_key


def measured_by_wrk(url: str, lua: str, script: Path, connections: int, seconds: int) -> Measured:
    script.write_text(lua)
    command = [
        *tool("usr/bin/wrk"),
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--latency",
        "--timeout",
        f"{TIMEOUT_S}s",
        "-s",
        str(script),
        url,
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False).stdout
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    p99 = re.search(r"99%\s+([0-9.]+)(us|ms|s)", said)
    if rate is None or p99 is None:
        raise OperatorError(f"wrk failed: {said.strip()[-200:]}")
    refused = re.search(r"Non-2xx or 3xx responses: ([0-9]+)", said)
    broken = re.search(r"Socket errors: connect ([0-9]+), read ([0-9]+), write ([0-9]+), timeout ([0-9]+)", said)
    errors = sum(map(int, (*(refused.groups() if refused else ()), *(broken.groups() if broken else ()))))
    return Measured(float(rate[1]), float(p99[1]) * _UNIT_MS[p99[2]], errors)


def _put_lua(key: str) -> str:
    """Each call another name: every one creates a job."""
    body = orjson.dumps(JOB).decode()
    return f"""{_headers(key)}
local count = 0
request = function()
  count = count + 1
  return wrk.format("PUT", "/v1/jobs/put-" .. count, nil, [==[{body}]==])
end
"""


def _get_lua(key: str) -> str:
    """A thousand of the jobs that were just put, but for the first: wrk asks the script for it and never sends it."""
    return f"""{_headers(key)}
local count = 0
request = function()
  count = count % 1000 + 1
  return wrk.format("GET", "/v1/jobs/put-" .. count + 1)
end
"""


def _batch_lua(key: str) -> str:
    body = orjson.dumps(JOB).decode()
    return f"""{_headers(key)}
local count = 0
request = function()
  local items = {{}}
  for n = 1, {BATCH} do
    count = count + 1
    items[n] = '{{"name":"batch-' .. count .. '","job":' .. [==[{body}]==] .. '}}'
  end
  return wrk.format("POST", "/v1/jobs:batch", nil, '{{"puts":[' .. table.concat(items, ",") .. ']}}')
end
"""


def _headers(key: str) -> str:
    return f'wrk.headers["Authorization"] = "Bearer {key}"\nwrk.headers["Content-Type"] = "application/json"'
