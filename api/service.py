"""What all calls of one process share: the fleet, the tenants, the clock, and keys derived from the fleet's own."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial

from engine.clock import Clock
from engine.config import Settings
from engine.events import Events
from engine.outbound.target import guard_of
from engine.service import Service as Loop
from engine.store.changes import Windows
from engine.store.placement import Placement
from engine.store.shard import Shard
from engine.store.tenants import REREAD_MS, Tenants

# More than a shard's cores can serve at once only queues there instead of here.
CONNECTIONS_PER_SHARD = 8


class Service:
    """Made once for a process; ``start`` before the first call, ``stop`` after the last."""

    def __init__(self, settings: Settings, clock: Clock, events: Events) -> None:
        shards = [Shard(dsn, index, connections_max=CONNECTIONS_PER_SHARD) for index, dsn in enumerate(settings.shards)]
        self.placement = Placement(shards)
        self.clock = clock
        self.events = events
        self.guard = guard_of(settings)
        self.tenants = Tenants(self.placement.first, clock)
        self.windows = Windows(settings.freeze_ms, settings.missed_after_ms)
        self._loop = Loop("api.reread", self._reread, REREAD_MS, clock, events)

    async def start(self) -> None:
        """Read the placement; a shard that is away is asked again every REREAD_MS."""
        await self.placement.read()
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        await self.placement.close()

    def fingerprint(self, tenant_id: int) -> Callable[[str], str]:
        """What is answered in place of a secret value: the same for the same value of one tenant."""
        return partial(_fingerprint, self.placement.derived_key("fingerprint"), tenant_id)

    async def _reread(self, now_ms: int) -> bool:
        if not self.placement.complete:
            await self.placement.read()
        await self.tenants.reread()
        return False


def _fingerprint(key: bytes, tenant_id: int, value: str) -> str:
    return hmac.digest(key, f"{tenant_id}:{value}".encode(), "sha256").hex()[:16]
