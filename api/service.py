"""What all calls of one process share: the fleet, the tenants, the clock, and keys derived from the fleet's own."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from api.gather import Gather
from api.idempotency import kept
from api.limits import JobCounts, Lanes, RequestRates
from api.responses import Answer
from api.work_place import WorkPlace
from engine.clock import Clock
from engine.config import Settings
from engine.errors import StoreUnavailable
from engine.events import Events
from engine.listening import databases_of
from engine.outbound.target import guard_of
from engine.service import Service as Loop
from engine.settings import keys_of
from engine.stages.fleet_listeners import FleetListeners
from engine.store.admin import note_keys_used
from engine.store.brakes import Brakes
from engine.store.changes import Windows
from engine.store.connection import Connection, Duplicate
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from engine.store.placement import Placement
from engine.store.requests import Once, record
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from engine.store.tenants import REREAD_MS, Tenants

if TYPE_CHECKING:
    from engine.history.history import History

# More than a shard's cores can serve at once only queues there instead of here.
CONNECTIONS_PER_SHARD = 8
# Of these for batches: one is read while the other is written, and the rest is for calls of a single job.
BULKS_PER_SHARD = 2

FINGERPRINT_CHARS = 8

# When a key was last used is for people: to the minute will do.
TELL_USED_MS = 60_000


class Creation(NamedTuple):
    """A job to be created, and how its answer is kept on record."""

    job: NewJob
    asked: Once | None
    render: Callable[[JobRow], Answer]


class Service:
    """Made once for a process; ``start`` before the first call, ``stop`` after the last."""

    def __init__(
        self, settings: Settings, clock: Clock, events: Events, listening: Sequence[tuple[str, int]] = ()
    ) -> None:
        """``listening``: address and port of this process's sockets."""
        keys = keys_of(settings)
        shards = [
            Shard(dsn, index, connections_max=CONNECTIONS_PER_SHARD, keys=keys)
            for index, dsn in enumerate(settings.shards)
        ]
        self.placement = Placement(shards)
        self.clock = clock
        self.cors_origins = frozenset(settings.cors_origins)
        self.events = events
        self.guard = guard_of(settings)
        self.tenants = Tenants(self.placement.first, clock)
        self._listeners = FleetListeners(
            self.placement.first, self.guard, clock, [*listening, *databases_of(settings)]
        )
        self.brakes = Brakes(self.placement.first)
        self.lanes = Lanes(clock)
        self.rates = RequestRates(clock, settings.api_processes * settings.api_hosts)
        self.counts = JobCounts(shards, clock)
        self.windows = Windows(settings.freeze_ms, settings.missed_after_ms)
        self.work = WorkPlace(self.placement, self.tenants, self.brakes, self.guard, clock, events)
        self._reads = {shard: Gather(partial(_find, shard)) for shard in shards}
        self._creates = {shard: Gather(partial(_create, shard)) for shard in shards}
        self._bulk = {shard: asyncio.Semaphore(BULKS_PER_SHARD) for shard in shards}
        # POSTs with an Idempotency-Key that are being carried out: tenant, path and key.
        self.in_progress: set[tuple[int, str, str]] = set()
        self._service_key = b""
        self._adopted = ""
        self._used_keys: dict[bytes, int] = {}
        self._used_told_boot_ms = clock.boot_ms()
        self.history = _history(settings, events)
        self._loop = Loop("api.reread", self._reread, REREAD_MS, clock, events)

    async def start(self) -> None:
        """Read the placement; a shard that is away is asked again every REREAD_MS."""
        await self.placement.read()
        with suppress(StoreUnavailable):
            await self._adopt_keys()
            await self._listeners.reread()
            await self.brakes.reread(self.clock.now_ms())
        if self.history is not None:
            self.history.start()
        self._loop.start()
        self.work.start()

    async def stop(self) -> None:
        await self.work.stop()
        await self._loop.stop()
        with suppress(StoreUnavailable):
            await self._tell_used_keys()
        await self.placement.close()

    def key_used(self, key_hash: bytes, now_ms: int) -> None:
        """Remember when a key was used; the first shard is told now and then."""
        self._used_keys[key_hash] = now_ms

    async def find_job(self, shard: Shard, tenant_id: int, name: str) -> JobRow | None:
        """The tenant's living job of this name."""
        return await self._reads[shard].ask((tenant_id, name))

    async def create_jobs(self, shard: Shard, creations: Sequence[Creation]) -> Sequence[JobRow | Exception]:
        """The same for many of one caller, each with its job or why there is none."""
        async with self._bulk[shard]:
            return await _create(shard, creations) if creations else []

    async def create_job(
        self, shard: Shard, job: NewJob, asked: Once | None, render: Callable[[JobRow], Answer]
    ) -> JobRow:
        """Create a job, its answer on record if it was asked for with a key; Duplicate if its name is taken."""
        return await self._creates[shard].ask(Creation(job, asked, render))

    def fingerprint(self, tenant_id: int) -> Callable[[str], str]:
        """What is answered in place of a secret value: the same for the same value of one tenant."""
        return partial(self._fingerprint, tenant_id)

    def _fingerprint(self, tenant_id: int, value: str) -> str:
        if not self._service_key:
            raise StoreUnavailable("the first shard has not answered yet")
        return hmac.digest(self._service_key, f"{tenant_id}:{value}".encode(), "sha256").hex()[:FINGERPRINT_CHARS]

    async def _reread(self, now_ms: int) -> bool:
        if not self.placement.complete:
            await self.placement.read()
        await self.tenants.reread()
        await self.brakes.reread(now_ms)
        await self._listeners.reread()
        await self._adopt_keys()  # last: where a key is missing, revoked API keys and brakes hold all the same
        if self.clock.boot_ms() - self._used_told_boot_ms >= TELL_USED_MS:
            await self._tell_used_keys()
        return False

    async def _adopt_keys(self) -> None:
        """Before a key seals here for the first time, or soon after, it is on record."""
        key_id = self.placement.first.keys.current_id
        if key_id != self._adopted:
            self._service_key = await adopt_keys(self.placement.first)
            self._adopted = key_id

    async def _tell_used_keys(self) -> None:
        used, self._used_keys = self._used_keys, {}
        self._used_told_boot_ms = self.clock.boot_ms()
        if not used:
            return
        try:
            await note_keys_used(self.placement.first, used)
        except StoreUnavailable:
            self._used_keys = used | self._used_keys
            raise


def _history(settings: Settings, events: Events) -> History | None:
    """What has left MySQL; None where nothing does before its end."""
    if settings.history != "cassandra" or settings.cassandra is None:
        return None
    from engine.history.history import History  # the driver is loaded where there is a Cassandra

    return History(settings.cassandra, settings.retention_days, events)


async def _find(shard: Shard, names: Sequence[tuple[int, str]]) -> Sequence[JobRow | None]:
    found = await find_jobs(shard, set(names))
    return [found.get(name) for name in names]


async def _create(shard: Shard, creations: Sequence[Creation]) -> Sequence[JobRow | Exception]:
    """All in one transaction; if one name is taken, each half in its own, until that one fails for itself alone."""

    async def finish(connection: Connection, rows: list[JobRow]) -> None:
        pairs = zip(creations, rows, strict=True)
        answers = [kept(asked, render(row)) for (_, asked, render), row in pairs if asked is not None]
        if answers:
            await record(connection, answers, shard.packet_bytes_max)

    try:
        return await create_jobs(shard, [creation.job for creation in creations], finish)
    except Duplicate as error:
        if len(creations) == 1:
            return [error]
        half = len(creations) // 2
        return [*await _create(shard, creations[:half]), *await _create(shard, creations[half:])]
