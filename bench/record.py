"""Finished runs from MySQL to Cassandra by the recorder's own stage, and the first page of a job read back from there.

One shard, one Cassandra and the recorder, on the same machine: the runs of a day that is old enough, written by MySQL
itself, are all waiting when it begins. The stage runs in a process of its own, as in the product, whose largest memory
is told: it is the same however many wait. Beside it each row by itself, as a client writes without batches.
"""

# ruff: noqa: S608 - numbers of ours, on a server of ours

from __future__ import annotations

import argparse
import asyncio
import resource
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import inf
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.history_rows import DAY_MS, FIRST_JOB, TENANTS, fill_days, first_day_ms
from bench.rounds import Progress, count
from bench.usage import cpu_s
from bench.world import World, world
from engine.clock import SystemClock, perf_ns
from engine.config import Settings
from engine.contact import Contact
from engine.events import Events
from engine.local.cassandra import SYNC_MS, CassandraServer
from engine.model import mint_worker_id
from engine.rows import FinishedRun, RunRow
from engine.stages.record_history import RecordHistory
from engine.store.shard import Shard

FLEET = b"bench record    "
KEYSPACE = "bench"
CONNECTED_S_MAX = 60
ONE_BY_ONE_RUNS = 20_000
PAGES = 50
PAGE_RUNS = 100
MIB = 1 << 20


if TYPE_CHECKING:
    from engine.history.history import History


class Recorded(NamedTuple):
    """What the process of the recorder took."""

    runs: int
    wall_s: float
    cpu_s: float
    memory_mib: int
    noted_after_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=count, default=400_000, metavar="N", help="that wait (400,000)")
    parser.add_argument("--seconds", type=count, metavar="S", help="stop after this long, however many still wait")
    parser.add_argument("--alone", action="store_true", help="without what a user would pick instead")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    with world(progress, shard_count=1) as here:
        return measure_record(here, args.runs, args.alone, args.seconds)


def measure_record(here: World, runs: int, alone: bool = True, seconds: int | None = None) -> dict[str, Any]:
    """``record_per_s`` and what goes with it, of so many runs of a day of its own; a new world's first use. With
    ``seconds``, which may be over before all is recorded, only what does not need that."""
    from engine.history.schema import create_history  # whoever types another command does not load the driver

    node = CassandraServer(here.folder / "cassandra", say=here.progress)
    with node:
        contact = Contact(((node.address, node.port),), KEYSPACE)
        settings = replace(
            here.settings, history="cassandra", cassandra=contact, cassandra_sync_ms=SYNC_MS, live_days=1
        )
        create_history(contact, FLEET, settings.retention_days)
        asyncio.run(_prepare(here, runs))
        before = _cpu(here, node)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            recorded = apart.submit(_record, settings, seconds).result()
        used = [after - was for after, was in zip(_cpu(here, node), before, strict=True)]
        here.progress(f"{recorded.runs:,} runs recorded in {recorded.wall_s:.1f} s")
        figures = {
            "record_per_s": round(recorded.runs / recorded.wall_s),
            "recorder_mib": recorded.memory_mib,
            "recorder_us_per_run": round(recorded.cpu_s * 1e6 / recorded.runs, 1),
            "mysqld_us_per_run": round(used[0] * 1e6 / recorded.runs, 1),
            "cassandra_us_per_run": round(used[1] * 1e6 / recorded.runs, 1),
        }
        if seconds is not None:
            return figures
        figures |= {"noted_after_s": round(recorded.noted_after_s, 1), **asyncio.run(_read(settings))}
        return figures if alone else figures | asyncio.run(_one_by_one(settings))


async def _prepare(here: World, runs: int) -> None:
    """A day of runs below the floor, and nothing open there."""
    async with here.opened():
        now_ms = SystemClock().now_ms()
        first_ms = first_day_ms(now_ms, 3)
        await fill_days(here, first_ms, 1, runs)
        async with here.shards[0].connection() as connection:
            await connection.run(f"UPDATE floor SET floor_at = {first_ms + DAY_MS}, closed_to = floor_at".encode())


def _cpu(here: World, node: CassandraServer) -> tuple[float, float]:
    return cpu_s(here.mysqld_pids()), cpu_s([node.pid])


def _record(settings: Settings, seconds: int | None) -> Recorded:
    return asyncio.run(_record_all(settings, seconds))


async def _record_all(settings: Settings, seconds: int | None) -> Recorded:
    """In a process of its own: the stage until nothing waits any more, and then until all of it is noted; or
    until the time is over."""
    from engine.history.session import durable_after_ms

    written: list[int] = []
    events, clock = Events(), SystemClock()
    events.subscribe(lambda name, fields: written.append(fields["runs"]) if name == "run.recorded" else None)
    history = await _connected(settings)
    shard = Shard(settings.shards[0], 0)
    partitions = [row[0] for row in (await shard.execute("placed_partitions")).rows]
    stage = RecordHistory(
        shard,
        partitions,
        history,
        mint_worker_id(),
        1,
        asyncio.Semaphore(1),
        clock,
        events,
        durable_after_ms(settings.cassandra_sync_ms),
    )
    begun_ms, cpu = clock.boot_ms(), resource.getrusage(resource.RUSAGE_SELF)
    until_ms = begun_ms + seconds * 1000 if seconds else inf
    while await stage.run_once(clock.now_ms()) and clock.boot_ms() < until_ms:
        pass
    took_s, used = (clock.boot_ms() - begun_ms) / 1000, resource.getrusage(resource.RUSAGE_SELF)
    while stage.unconfirmed and seconds is None:
        await asyncio.sleep(0.1)
        await stage.run_once(clock.now_ms())
    noted_s = (clock.boot_ms() - begun_ms) / 1000
    await history.stop()
    await shard.close()
    spent_s = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    return Recorded(sum(written), took_s, spent_s, used.ru_maxrss // 1024, noted_s - took_s)


async def _connected(settings: Settings) -> History:
    from engine.history.history import History

    assert settings.cassandra  # noqa: S101 - given by measure_record
    history = History(settings.cassandra, settings.retention_days, Events())
    history.start()
    async with asyncio.timeout(CONNECTED_S_MAX):
        while not history.connected:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.05)
    return history


async def _read(settings: Settings) -> dict[str, Any]:
    """The first page of a job's runs, by the history itself, warm."""
    history, took_ns = await _connected(settings), list[int]()
    now_ms = SystemClock().now_ms()
    tenant_id = FIRST_JOB % TENANTS + 1
    for _ in range(PAGES):
        begun_ns = perf_ns()
        found = await history.list_runs(tenant_id, FIRST_JOB, now_ms - 30 * DAY_MS, now_ms, PAGE_RUNS)
        took_ns.append(perf_ns() - begun_ns)
        assert found  # noqa: S101 - it was recorded just now
    await history.stop()
    return {"list_ms": round(median(took_ns) / 1e6, 2)}


async def _one_by_one(settings: Settings) -> dict[str, Any]:
    """Each row in a statement of its own, as many at the same time as there are batches on their way."""
    from engine.history import write

    history, clock = await _connected(settings), SystemClock()
    now_ms = clock.now_ms() // 1000 * 1000
    runs = [
        FinishedRun(1, 2, RunRow(now_ms, job, 1, 4, 1, 1, 1, None, 1, 200, now_ms, now_ms + 5, 0))
        for job in range(1, ONE_BY_ONE_RUNS + 1)
    ]
    write.BATCH_ROWS_MAX = 1
    begun_ms = clock.boot_ms()
    await history.write(runs)
    took_s = (clock.boot_ms() - begun_ms) / 1000
    await history.stop()
    return {"one_by_one_per_s": round(ONE_BY_ONE_RUNS / took_s)}
