"""History in MySQL: the first page of a job's runs, a day dropped whole under load, and counting what has ended.

Many millions of runs over thirty days are written by the server itself, without the durability that everything else is
measured with: they stand for what was there before. The days' rows belong to made-up jobs, among them stand the runs of
four jobs that are listed. The drop is the keeper's own step, beside an engine that calls a receiver all the time; how
late those calls are is taken from the receiver's log, before and while the day is dropped.

Then, with a shard of its own, the same for a history in Cassandra: what the recorder takes there, and a first page.
"""

# ruff: noqa: S608 - numbers of ours, on a server of ours

from __future__ import annotations

import argparse
import asyncio
import http.client
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench import load
from bench.history_rows import DAY_MS, LISTED, fill_days, fill_oldest_day, first_day_ms, write_jobs
from bench.record import measure_record
from bench.rounds import Progress, count
from bench.world import Job, World, world
from engine.clock import SystemClock
from engine.errors import OperatorError
from engine.events import Events
from engine.local.nginx import Sink
from engine.local.record import Call
from engine.model import Cron, Definition, HttpTarget
from engine.rules.lag import percentile
from engine.stages.record import QUIET_FROM_S, QUIET_TO_S, Record
from engine.stages.rollup import Rollup

PAGES_WARM, PAGES = 20, 100
COUNTED_PARTITIONS = 8
# Longer than any day that is there: the engine's own keeper drops none.
KEPT_DAYS = 720
# Calls of so long around the drop are those that it may have held up.
AROUND_MS = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=10_000_000, metavar="N", help="over the days (10,000,000)")
    parser.add_argument("--days", type=count, default=30, metavar="N", help="before today (30)")
    parser.add_argument("--day-runs", type=count, default=10_000_000, metavar="N", help="in the day that is dropped")
    parser.add_argument("--load", type=count, default=500, metavar="N", help="calls a second meanwhile (500)")
    parser.add_argument("--seconds", type=count, default=15, metavar="S", help="of calls before and after (15)")
    parser.add_argument("--recorded", type=count, default=400_000, metavar="N", help="runs to Cassandra (400,000)")
    parser.add_argument("--mysql-only", action="store_true", help="leave Cassandra out")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep what is written, and take it the next time")
    parser.add_argument("--fill", action="store_true", help="only write what is missing in --data")


class Dropped(NamedTuple):
    """When a day was dropped, milliseconds since the epoch."""

    begun_ms: int
    ended_ms: int


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress, args.data, shard_count=1, retention_days=KEPT_DAYS) as here:
        key = asyncio.run(_fill(here, args))
        if args.fill:
            return {"filled": str(args.data)}
        figures: dict[str, Any] = {"counted_per_s": asyncio.run(_count_day(here, args.days))}
        figures |= _list(here, here.start_api(), key)
        figures |= _drop(here, args)
    return figures if args.mysql_only else figures | _in_cassandra(progress, args.recorded)


def _in_cassandra(progress: Progress, runs: int) -> dict[str, Any]:
    """What `bench record` measures; the first page from there beside that from MySQL."""
    with world(progress, shard_count=1) as here:
        figures = measure_record(here, runs)
    told = {"record_per_s": "record_per_s", "recorder_mib": "recorder_mib", "cassandra_list_ms": "list_ms"}
    return {name: figures[measured] for name, measured in told.items()}


async def _fill(here: World, args: argparse.Namespace) -> str:
    """Days and jobs, once; returns the key of the tenant whose jobs are listed."""
    async with here.opened():
        filled, known = here.folder / "filled", here.folder / "tenant.key"
        first_ms = first_day_ms(SystemClock().now_ms(), args.days)
        if not filled.exists():
            await fill_days(here, first_ms, args.days, args.runs)
            filled.touch()
        if not known.exists():
            key = await write_jobs(here, first_ms, args.days)
            rows = await _rows(here, "SELECT DISTINCT partition_id FROM jobs")
            await _count(here, [row[0] for row in rows], first_ms, first_ms + args.days * DAY_MS)
            known.write_text(key)
        await fill_oldest_day(here, first_ms, args.day_runs)
        return known.read_text()


async def _count_day(here: World, days: int) -> int:
    """Ended runs a second that the keeper counts, which is all that is done with them after they were settled."""
    async with here.opened():
        to_ms = first_day_ms(SystemClock().now_ms(), days)
        took_ms = await _count(here, range(COUNTED_PARTITIONS), to_ms - DAY_MS, to_ms)
        counted = await _rows(here, f"SELECT SUM(called) FROM tenant_hours WHERE hour_at < {to_ms}")
        return round(int(counted[0][0]) * 1000 / took_ms)


async def _count(here: World, partitions: Sequence[int], from_ms: int, to_ms: int) -> int:
    """Count a span of some partitions, once more if it is counted; milliseconds that it took."""
    (shard,), clock = here.shards, SystemClock()
    async with shard.connection() as connection:
        await connection.execute("begin_counting", {"partitions": range(here.partitions)})
        await connection.run(f"UPDATE marks SET mark_at = {to_ms}".encode())
        await connection.run(f"UPDATE counted SET counted_to = {from_ms}, seen_to = {from_ms}".encode())
        await connection.run(f"UPDATE floor SET floor_at = {from_ms}".encode())
    stage, begun_ms = Rollup(shard, partitions, clock, Events()), clock.boot_ms()
    while await stage.run_once(clock.now_ms()):
        pass
    took_ms = clock.boot_ms() - begun_ms
    # Today's midnight, as if all of it were swept and counted: the engine goes on from there.
    today_ms = first_day_ms(clock.now_ms(), 0)
    async with shard.connection() as connection:
        await connection.run(f"UPDATE marks SET mark_at = {today_ms}".encode())
        await connection.run(f"UPDATE counted SET counted_to = {today_ms}, seen_to = {today_ms}".encode())
    return took_ms


def _list(here: World, url: str, key: str) -> dict[str, Any]:
    """Milliseconds of a first page over HTTP, warm, and of a job's numbers; the slowest kind of job counts."""
    pages = {name: _median_ms(url, key, f"/v1/jobs/{name}/runs") for name in LISTED}
    stats = {name: _median_ms(url, key, f"/v1/jobs/{name}/stats") for name in LISTED}
    here.progress(f"first page in ms: {pages}; numbers: {stats}")
    return {
        "list_ms": max(pages.values()),
        "list_ms_of": pages,
        "stats_ms": max(stats.values()),
        "usage_ms": _median_ms(url, key, "/v1/usage"),
    }


def _median_ms(url: str, key: str, path: str) -> float:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    took_ms = []
    for number in range(PAGES_WARM + PAGES):
        begun_s = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OperatorError(f"{path} answers {answer.status}: {body[:200]!r}")
        if number >= PAGES_WARM:
            took_ms.append((time.perf_counter() - begun_s) * 1000)
    connection.close()
    return round(median(took_ms), 2)


def _drop(here: World, args: argparse.Namespace) -> dict[str, Any]:
    """The oldest day goes while the engine calls the receiver."""
    sink = here.start_sink()
    here.start_engine()
    at_ms = asyncio.run(_load(here, sink, args.load, 4 * args.seconds))
    _sleep_until(max(at_ms + args.seconds * 1000, _quiet_from(at_ms + args.seconds * 1000)))
    dropped = asyncio.run(_drop_oldest(here, args.days))
    here.progress(f"dropped in {(dropped.ended_ms - dropped.begun_ms) / 1000:.2f} s")
    _sleep_until(dropped.ended_ms + args.seconds * 1000)
    here.stop_engine()
    calls = list(sink.calls())
    before = _lags(calls, dropped.begun_ms - args.seconds * 1000, dropped.begun_ms - AROUND_MS)
    during = _lags(calls, dropped.begun_ms - AROUND_MS, dropped.ended_ms + AROUND_MS)
    return {
        "drop_s": round((dropped.ended_ms - dropped.begun_ms) / 1000, 3),
        "calls": len(calls),
        **{f"lag_p99_ms_{name}": percentile(lags, 99) for name, lags in (("before", before), ("during", during))},
        **{f"lag_max_ms_{name}": percentile(lags, 100) for name, lags in (("before", before), ("during", during))},
    }


async def _load(here: World, sink: Sink, calls_per_s: int, seconds: int) -> int:
    """Jobs of every second; returns when their first calls come."""
    async with here.opened():
        (tenant_id,) = [row[0] for row in await _rows(here, "SELECT MIN(tenant_id) FROM tenants")]
        origins = load.origins_of(sink, 0, tls=False)
        at_ms = (SystemClock().now_ms() // 1000 + 3) * 1000
        schedule = Cron("* * * * * *", start_at_ms=at_ms, end_at_ms=at_ms + seconds * 1000 + 60_000)
        # Their names are new each time: what is kept may have those of an earlier round.
        names = [f"load-{at_ms}-{number}" for number in range(calls_per_s)]
        jobs = [
            Job(tenant_id, name, Definition(schedule, HttpTarget(f"{origins.url(0)}/{name}"))) for name in names
        ]
        await here.create_jobs(jobs)
        return at_ms


async def _drop_oldest(here: World, days: int) -> Dropped:
    """By the keeper's step; only what it does counts, not the moment that it waits for."""
    async with here.opened():
        (shard,), clock, events = here.shards, SystemClock(), Events()
        told: list[str] = []
        events.subscribe(lambda name, fields: told.append(f"{name} {fields.get('reason', '')}"))
        stage = Record(shard, range(here.partitions), replace(here.settings, retention_days=days), events)
        begun_ms = clock.now_ms()
        await stage.run_once(begun_ms)
        if not any(event.startswith("day.dropped") for event in told):
            raise OperatorError(f"no day was dropped: {', '.join(told) or 'none is old enough, or the minute is full'}")
        return Dropped(begun_ms, clock.now_ms())


async def _rows(here: World, sql: str) -> Sequence[Any]:
    async with here.shards[0].connection() as connection:
        return (await connection.run(sql.encode())).rows


def _quiet_from(at_ms: int) -> int:
    """The next moment in which the keeper would drop a day."""
    second = at_ms // 1000 % 60
    if QUIET_FROM_S <= second < QUIET_TO_S - 5:
        return at_ms
    return at_ms + (QUIET_FROM_S - second) % 60 * 1000 + 500


def _sleep_until(at_ms: int) -> None:
    time.sleep(max(0, at_ms - SystemClock().now_ms()) / 1000)


def _lags(calls: Sequence[Call], from_ms: int, to_ms: int) -> Counter[int]:
    """Of what was due in a span."""
    return Counter(call.arrival_ms - call.scheduled_at_ms for call in calls if from_ms <= call.scheduled_at_ms < to_ms)
