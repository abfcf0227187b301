"""A whole system to measure: MySQL shards, the engine's own processes and a receiver, as `up` and a fleet start them.

Durability is MySQL's default (every commit reaches the disk twice, in the redo log and in the binlog). Everything is
made in a folder of its own and ended and removed whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import orjson

from bench.rounds import Progress
from bench.usage import children, cpu_s
from engine.clock import SystemClock
from engine.commands.migrate import migrate
from engine.commands.up import DATABASE, start_servers, stopping_on_signals
from engine.config import Settings
from engine.errors import OperatorError
from engine.keys import make_key_file
from engine.local.child import Child
from engine.local.folder import held
from engine.local.listener import free_port, url_of
from engine.local.nginx import Sink
from engine.model import Definition, partition_of
from engine.rules.placement import shard_of
from engine.settings import KEY_FILE, keys_of
from engine.store.fleet import check_fleet
from engine.store.jobs import NewJob, create_jobs, create_jobs_in
from engine.store.shard import Shard
from engine.store.tenants import create_tenant

LOOPBACK = ("127.0.0.0/8",)
CONNECTIONS = 8
JOBS_PER_TRANSACTION = 10_000
POLL_S = 0.2
SETTLED_S_MAX = 30
PROGRESS_STEPS = 20
SHARED_S_MAX = 60


class Job(NamedTuple):
    """A job of a bench."""

    tenant_id: int
    name: str
    definition: Definition


class Cpu(NamedTuple):
    """CPU seconds used until a moment (boot time, milliseconds), by kind of process."""

    at_ms: int
    mysqld: float
    executor: float
    keeper: float
    receiver: float

    def us_per_run(self, before: Cpu, runs: int, rest: tuple[Cpu, Cpu] | None = None) -> dict[str, float]:
        """Microseconds of each kind for a run since an earlier reading, less what they use between two at rest."""
        figures = {}
        for kind in ("mysqld", "executor", "receiver"):
            used_s = getattr(self, kind) - getattr(before, kind)
            if rest:
                at_rest = (getattr(rest[1], kind) - getattr(rest[0], kind)) / (rest[1].at_ms - rest[0].at_ms)
                used_s -= at_rest * (self.at_ms - before.at_ms)
            figures[f"{kind}_us_per_run"] = round(max(0.0, used_s) * 1e6 / runs, 1)
        return figures


class World:
    """Shards that are one fleet, and what was started on them so far."""

    def __init__(self, folder: Path, started: ExitStack, progress: Progress, **settings: Any) -> None:
        """New, migrated shards; settings as an operator has them, the rest is ours."""
        self.folder = folder
        self.progress = progress
        self._started = started
        asked = Settings(
            data=folder,
            allow_networks=LOOPBACK,
            metrics_port=free_port(),
            secrets_key_file=folder / KEY_FILE,
            **settings,
        )
        make_key_file(folder / KEY_FILE)
        self._servers = start_servers(asked, started)
        dsns = tuple(server.dsn(DATABASE) for server in self._servers)
        self.settings = replace(asked, shards=dsns, shard_count=None)
        asyncio.run(migrate(dsns, keys_of(asked)))
        self.shards: list[Shard] = []
        self.partitions = 0
        self.sink: Sink | None = None
        self._engine: Child | None = None
        self._api: Child | None = None

    def start_sink(self, **options: Any) -> Sink:
        """The receiver, on every address of 127.0.0.0/8; options as in Sink."""
        everywhere = "0.0.0.0"  # noqa: S104 - it lets in nobody else
        shutil.rmtree(self.folder / "receiver", ignore_errors=True)
        self.sink = self._started.enter_context(Sink(self.folder / "receiver", address=everywhere, **options))
        return self.sink

    def start_engine(self, variables: Mapping[str, str] | None = None) -> None:
        """The product's own processes, one executor for each core; returns once they are ready."""
        self.progress("starting the engine")
        self._engine = Child("engine", self.settings, variables=variables)
        self._started.callback(self._engine.stop)
        self._engine.start()
        self._engine.wait_ready(self._engine_url)
        clock = SystemClock()
        deadline_ms = clock.boot_ms() + SHARED_S_MAX * 1000
        while not self._shared_out():
            if clock.boot_ms() > deadline_ms:
                raise OperatorError(f"partitions were not shared out within {SHARED_S_MAX} s (see {self._engine.log})")
            time.sleep(POLL_S)

    def stop_engine(self) -> None:
        if self._engine:
            self._engine.stop()

    def start_api(self) -> str:
        """The API on a port of its own; returns its address."""
        self.progress("starting the API")
        settings = replace(self.settings, port=free_port())
        self._api = Child("api", settings)
        self._started.callback(self._api.stop)
        self._api.start()
        url = url_of("127.0.0.1", settings.port)
        self._api.wait_ready(url)
        return url

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[World]:
        """With connections to the shards, for as long as the block runs."""
        self.shards = [
            Shard(dsn, index, connections_max=CONNECTIONS, pool_wait_ms=60_000, keys=keys_of(self.settings))
            for index, dsn in enumerate(self.settings.shards)
        ]
        try:
            self.partitions = (await check_fleet(self.shards)).partition_count
            yield self
        finally:
            for shard in self.shards:
                await shard.close()

    async def create_tenants(self, count: int) -> list[int]:
        """So many tenants, each with a signing secret; returns their ids."""
        created = [create_tenant(self.shards[0], f"bench-{number:06}") for number in range(1, count + 1)]
        return [tenant.tenant_id for tenant in await asyncio.gather(*created)]

    async def create_jobs(self, jobs: Sequence[Job]) -> None:
        """Store them as the API does, the shards in parallel and many in one transaction."""
        begun_ms = SystemClock().now_ms()
        await asyncio.gather(*(_create(shard, new) for shard, new in self._by_shard(jobs)))
        self.progress(f"{len(jobs):,} jobs stored in {(SystemClock().now_ms() - begun_ms) / 1000:.1f} s")

    async def create_jobs_at_once(self, jobs: Sequence[Job]) -> int:
        """Store them so that all are there from one moment on; returns it, in milliseconds."""
        async with AsyncExitStack() as transactions:
            for shard, new in self._by_shard(jobs):
                connection = await transactions.enter_async_context(shard.transaction())
                await create_jobs_in(connection, new, shard.packet_bytes_max)
            self.progress(f"{len(jobs):,} jobs written")
            return SystemClock().now_ms()

    def _by_shard(self, jobs: Sequence[Job]) -> Iterator[tuple[Shard, list[NewJob]]]:
        of_shard: list[list[NewJob]] = [[] for _ in self.shards]
        for job in jobs:
            partition = partition_of(job.tenant_id, job.name, self.partitions)
            new = NewJob(job.tenant_id, job.name, partition, job.definition, False)
            of_shard[shard_of(partition, len(self.shards))].append(new)
        return zip(self.shards, of_shard, strict=True)

    def cpu(self) -> Cpu:
        """What each kind of process has used so far."""
        return Cpu(
            at_ms=SystemClock().boot_ms(),
            mysqld=cpu_s(self.mysqld_pids()),
            executor=cpu_s(self.engine_pids("executor")),
            keeper=cpu_s(self.engine_pids("keeper")),
            receiver=cpu_s(children(self.sink.pid)) if self.sink else 0,
        )

    def engine_pids(self, kind: str = "") -> list[int]:
        """The engine's processes whose name begins so, as its log names them; all of them and the supervisor for ''."""
        if self._engine is None:
            return []
        alive = set(children(self._engine.pid))
        told = [orjson.loads(line) for line in self._engine.log.read_bytes().splitlines() if b'"child.started"' in line]
        named = [line["pid"] for line in told if line["pid"] in alive and line["child"].startswith(kind)]
        return named if kind else [self._engine.pid, *named]

    def mysqld_pids(self) -> list[int]:
        return [server.pid for server in self._servers]

    def api_pids(self) -> list[int]:
        return [self._api.pid, *children(self._api.pid)] if self._api else []

    def health(self) -> list[dict[str, Any]]:
        """What each process of the engine says of itself; an empty list while none does."""
        try:
            with urlopen(f"{self._engine_url}/readyz", timeout=5) as answer:  # noqa: S310 - our own address
                return list(orjson.loads(answer.read())["processes"])
        except HTTPError as error:
            return list(orjson.loads(error.read())["processes"])
        except OSError:
            return []

    def until_settled(self) -> None:
        """Return once the executors hold nothing any more, or after SETTLED_S_MAX: what fails is tried for minutes."""
        clock = SystemClock()
        deadline_ms = clock.now_ms() + SETTLED_S_MAX * 1000
        while any(process.get("held") for process in self.health()) and clock.now_ms() < deadline_ms:
            time.sleep(POLL_S)

    def until_called(self, calls: int, deadline_ms: int) -> None:
        """Return once the receiver has had so many requests, or at the deadline."""
        assert self.sink  # noqa: S101 - started before anything is called
        clock, said = SystemClock(), 0
        while (received := self.sink.received()) < calls and clock.now_ms() < deadline_ms:
            if received - said > calls // PROGRESS_STEPS:
                self.progress(f"{received:,} of {calls:,} called")
                said = received
            time.sleep(POLL_S)

    def _shared_out(self) -> bool:
        """Whether every executor owns as much as the others."""
        owned = [process["partitions"] for process in self.health() if "partitions" in process]
        every_shard = zip(*owned, strict=True)
        return len(owned) == self.settings.executors and all(max(of) - min(of) <= 1 for of in every_shard)

    @property
    def _engine_url(self) -> str:
        return url_of("127.0.0.1", self.settings.metrics_port)


@contextmanager
def world(progress: Progress, kept: Path | None = None, **settings: Any) -> Iterator[World]:
    """A new one for a bench, ended and removed after it; or in a folder that is kept for the next time."""
    with (
        stopping_on_signals(),
        _temporary_folder() if kept is None else nullcontext(kept.resolve()) as folder,
        ExitStack() as started,
        held(folder),
    ):
        yield World(folder, started, progress, **settings)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="secondzero-bench-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o700)
        yield Path(folder)


async def _create(shard: Shard, jobs: Sequence[NewJob]) -> None:
    for first in range(0, len(jobs), JOBS_PER_TRANSACTION):
        await create_jobs(shard, jobs[first : first + JOBS_PER_TRANSACTION])
