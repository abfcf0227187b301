"""What a user would pick instead, in a process of its own: calls the same receiver as ours at the same kind of second.

asyncio      a heap of times in memory and aiohttp: nothing is stored, a restart loses it all
apscheduler  APScheduler with its SQLAlchemy store in an SQLite file, the calls made with aiohttp
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import uvloop

from engine.clock import wall_ms
from engine.errors import OperatorError

CONNECTIONS = 256
# Given up on after this; what has not been called by then is lost.
AFTER_S_MAX = 60

_session: aiohttp.ClientSession | None = None
_calls = asyncio.Semaphore(CONNECTIONS)


def run_instead(way: str, url: str, prefix: str, runs: int, at_ms: int, folder: Path) -> None:
    """Returns once all of it has been called; each call is named ``prefix`` and a number. OperatorError if it fails."""
    command = [sys.executable, "-m", "bench.instead", way, url, prefix, str(runs), str(at_ms), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=AFTER_S_MAX * 3, check=False)
    if ended.returncode:
        raise OperatorError(f"{way}: {ended.stderr.strip().splitlines()[-1]}")


async def by_asyncio(url: str, names: Sequence[str], at_ms: int) -> None:
    heap = [(at_ms, name) for name in names]
    heapq.heapify(heap)
    calls = []
    while heap:
        due_ms, name = heapq.heappop(heap)
        if due_ms > wall_ms():
            await asyncio.sleep((due_ms - wall_ms()) / 1000)
        calls.append(asyncio.ensure_future(call(url, name, due_ms)))
    await asyncio.gather(*calls)


async def by_apscheduler(url: str, names: Sequence[str], at_ms: int, folder: Path) -> None:
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    left, done = len(names), asyncio.Event()

    def count(_: JobExecutionEvent) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    store = SQLAlchemyJobStore(url=f"sqlite:///{folder}/apscheduler.db")
    scheduler = AsyncIOScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.add_listener(count, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    due = datetime.fromtimestamp(at_ms / 1000, UTC)
    scheduler.start(paused=True)
    for name in names:
        scheduler.add_job(call, "date", run_date=due, args=(url, name, at_ms), misfire_grace_time=None)
    scheduler.resume()
    await asyncio.wait_for(done.wait(), max(0, at_ms - wall_ms()) / 1000 + AFTER_S_MAX)
    scheduler.shutdown()


async def call(url: str, name: str, due_ms: int) -> None:
    """One call with the headers by which the receiver counts."""
    assert _session  # noqa: S101 - opened before anything is called
    scheduled_at = datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    headers = {"Idempotency-Key": f"{name}.{due_ms}", "X-Attempt": "1", "X-Scheduled-At": scheduled_at}
    async with _calls, _session.post(f"{url}/{name}", headers=headers, data=b"") as answer:
        await answer.read()


async def main() -> None:
    global _session
    parser = argparse.ArgumentParser()
    for name, kind in (("way", str), ("url", str), ("prefix", str), ("runs", int), ("at_ms", int), ("folder", Path)):
        parser.add_argument(name, type=kind)
    args = parser.parse_args()
    names = [f"{args.prefix}{number}" for number in range(args.runs)]
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as _session:
        if args.way == "asyncio":
            await by_asyncio(args.url, names, args.at_ms)
        else:
            await by_apscheduler(args.url, names, args.at_ms, args.folder)


if __name__ == "__main__":
    uvloop.run(main())
