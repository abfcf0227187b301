"""How fast one core sends requests and reads answers, beside wrk on the same receiver in the same run.

Ours is the HTTP client alone, its requests prepared as they are before their second; wrk repeats one request of the
same bytes. Both keep 100 connections to an nginx on another core, in alternating rounds; the medians are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from engine.clock import SystemClock, cpu_ns, perf_ns
from engine.errors import OperatorError
from engine.local.nginx import Sink, tool
from engine.outbound.client import HttpClient
from engine.outbound.exchange import Outcome, Request
from engine.outbound.head import fixed_head, run_head
from engine.outbound.resolver import DnsResolver
from engine.outbound.sign import signature
from engine.outbound.target import Guard
from engine.outbound.tls import client_context
from engine.rules.target_text import Target

KEYS = (b"a key of 24 bytes length",)
BODY = b'{"order": 1234567}'
TIMEOUT_MS = 30_000
# wrk is given this long to end after its time is over.
GRACE_S = 30

Progress = Callable[[str], None]


class Rate(NamedTuple):
    """Requests a second, and the CPU time of each."""

    rps: float
    cpu_us: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings of this bench."""
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement (3)")
    parser.add_argument("--rounds", type=int, default=3, help="of ours and wrk in turn; the median counts (3)")
    parser.add_argument("--connections", type=int, default=100, help="kept open by each side (100)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, float]:
    """Requests a second of ours and wrk, plain and over TLS; ``cpu_us`` is ours for one request."""
    wrk = tool("usr/bin/wrk")
    ours_core, sink_core = cores()
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="secondzero-fire-") as folder,
        pinned(ours_core),
        Sink(Path(folder), tls=True, cpu=sink_core, log=False) as sink,
    ):
        for prefix, origin in (("", f"http://127.0.0.1:{sink.port}"), ("tls_", f"https://127.0.0.1:{sink.tls_port}")):
            figures |= _compare(prefix, origin + "/fire", sink.certificate, wrk, args, progress)
    return figures


def _compare(
    prefix: str, url: str, certificate: Path, wrk: list[str], args: argparse.Namespace, progress: Progress
) -> dict[str, float]:
    ours: list[Rate] = []
    theirs: list[float] = []
    for turn in range(1, args.rounds + 1):
        ours.append(uvloop.run(fire(url, certificate, args.connections, args.seconds)))
        theirs.append(_wrk(wrk, url, certificate.parent, args.connections, args.seconds))
        progress(f"{url.partition(':')[0]} {turn}/{args.rounds}: ours {ours[-1].rps:,.0f}/s, wrk {theirs[-1]:,.0f}/s")
    ours_rps, wrk_rps = statistics.median(rate.rps for rate in ours), statistics.median(theirs)
    return {
        f"{prefix}ours_rps": round(ours_rps),
        f"{prefix}wrk_rps": round(wrk_rps),
        f"{prefix}ratio": round(ours_rps / wrk_rps, 3),
        f"{prefix}cpu_us": round(statistics.median(rate.cpu_us for rate in ours), 2),
    }


async def fire(
    url: str,
    certificate: Path,
    connections: int,
    seconds: int,
    guard: Guard | None = None,
    keys: Sequence[bytes] = KEYS,
) -> Rate:
    """One measurement of ours; requests are signed with these keys."""
    guard = guard or Guard(allowed_networks=["127.0.0.0/8"])
    target = guard.judge_url(url)
    if not isinstance(target, Target):
        raise OperatorError(f"{url}: {target.detail}")
    context = client_context(str(certificate))
    client = HttpClient(asyncio.get_running_loop(), SystemClock(), guard, DnsResolver(), context=context)
    failure = await client.warm(1, target.origin, connections)
    if failure:
        raise OperatorError(f"no connection to {target.origin}: {failure.detail}")
    try:
        return await _Burst(client, target, connections, keys).run(seconds)
    finally:
        await client.close()


class _Burst:
    """As many requests in flight as there are connections, the next one sent from within an answer, as stages do."""

    def __init__(self, client: HttpClient, target: Target, connections: int, keys: Sequence[bytes]) -> None:
        self._client = client
        fixed = fixed_head(target, "POST", [("Content-Type", "application/json")], BODY)
        self._requests = [_prepared(target, fixed, number, keys) for number in range(connections)]
        self._answered = 0
        self._failed: Outcome | None = None
        self._open = True

    async def run(self, seconds: int) -> Rate:
        started_ns, started_cpu_ns = perf_ns(), cpu_ns()
        for number, request in enumerate(self._requests):
            self._client.send(request, self._on_done, number)
        await asyncio.sleep(seconds)
        self._open = False
        count, took_ns, took_cpu_ns = self._answered, perf_ns() - started_ns, cpu_ns() - started_cpu_ns
        if self._failed:
            raise OperatorError(f"a request failed: {self._failed.reason} {self._failed.detail}")
        return Rate(count * 1e9 / took_ns, took_cpu_ns / 1e3 / count)

    def _on_done(self, number: int, outcome: Outcome) -> None:
        if outcome.status != 200:
            self._failed = outcome
        elif self._open:
            self._answered += 1
            self._client.send(self._requests[number], self._on_done, number)


def _prepared(target: Target, fixed: bytes, number: int, keys: Sequence[bytes]) -> Request:
    key = b"run_%032x" % number
    signed = signature(keys, key, 1_700_000_000, BODY)
    head = run_head(fixed, key, 1_700_000_000_000, 1, 1_700_000_000, signed)
    return Request(1, target.origin, "POST", head, BODY, TIMEOUT_MS)


def _wrk(wrk: list[str], url: str, folder: Path, connections: int, seconds: int) -> float:
    script = folder / "request.lua"
    script.write_text(_lua(url))
    command = [*wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False)
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", said.stdout)
    if rate is None or "Non-2xx" in said.stdout:
        raise OperatorError(f"wrk failed: {(said.stderr or said.stdout).strip()[-200:]}")
    return float(rate[1])


def _lua(url: str) -> str:
    """The same request for wrk, which then repeats its bytes without running Lua for each."""
    target = Guard(allowed_networks=["127.0.0.0/8"]).judge_url(url)
    assert isinstance(target, Target)  # noqa: S101 - judged before
    fixed = fixed_head(target, "POST", [("Content-Type", "application/json")], BODY)
    lines: list[Any] = _prepared(target, fixed, 1, KEYS).head.decode().split("\r\n")[1:-2]
    fields = [line.split(": ", 1) for line in lines if not line.startswith(("Host", "Content-Length"))]
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in fields)
    return f"wrk.method = \"POST\"\nwrk.body = '{BODY.decode()}'\n{headers}\n"


def cores() -> tuple[int, int | None]:
    """The core of ours and wrk, and another one for the receiver if there is one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[1] if len(cores) > 1 else None


@contextmanager
def pinned(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
