"""Where this process hands out work: its door on every shard, the hub of those who wait, heartbeats and ends gathered.

Heartbeats and ends of the same moment share a transaction for each shard, as PUTs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from api.gather import Gather
from api.work_hub import FunctionKey, Hub
from engine.clock import Clock
from engine.errors import StoreUnavailable
from engine.events import Events
from engine.model import RunKey
from engine.outbound.target import Guard
from engine.service import Service as Loop
from engine.stages.door import SHOW_MS, Asked, Door
from engine.stages.versions import Versions
from engine.stages.work import Beat, Renewed, Stale, Work, new_door
from engine.stages.work_ends import End, Fence, WorkRow
from engine.store.brakes import Brakes
from engine.store.placement import Placement
from engine.store.shard import Shard
from engine.store.tenants import Tenants

# Payloads are up to 256 KB: fewer of them are kept than an executor keeps of its calls.
VERSIONS_MAX = 5_000

# A worker's slot waits for the answer to an end; for that to a heartbeat nobody waits.
ENDS_LINGER_S = 0.005
BEATS_LINGER_S = 0.05

# With what it signs a whole number of base64 quanta.
SIGNATURE_BYTES = 17
# Version, partition, scheduled time, job, attempt, door.
_TOKEN = struct.Struct(">BHqQIQ")
_TOKEN_VERSION = 1
TOKEN_CHARS = 64


class WorkPlace:
    """Made once for a process, with its service."""

    def __init__(
        self, placement: Placement, tenants: Tenants, brakes: Brakes, guard: Guard, clock: Clock, events: Events
    ) -> None:
        versions = Versions(guard, VERSIONS_MAX)
        self._placement = placement
        self._clock = clock
        self._events = events
        door_id = new_door()
        works = [Work(shard, door_id, versions, tenants.is_told, clock, events) for shard in placement.shards]
        self.hub = Hub(works, brakes, clock, events)
        self._asked = Asked()
        self._beats: dict[Shard, Gather[Beat, Renewed | Stale]] = {
            work.shard: Gather(work.renew, BEATS_LINGER_S) for work in works
        }
        self._ends: dict[Shard, Gather[End, WorkRow | Stale]] = {
            work.shard: Gather(work.settle, ENDS_LINGER_S) for work in works
        }
        self._doors = [Door(work, self._asked, self._waiting, clock) for work in works]
        self._loops = [
            Loop(f"door-{place}", door.run_once, SHOW_MS, clock, events) for place, door in enumerate(self._doors)
        ]

    def start(self) -> None:
        self.hub.start()
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        await self.hub.stop()
        for loop, door in zip(self._loops, self._doors, strict=True):
            await loop.stop()
            with contextlib.suppress(StoreUnavailable):
                await door.leave()

    def asked(self, functions: Sequence[FunctionKey], now_ms: int) -> None:
        """A worker has asked for these."""
        self._asked.note(functions, now_ms)

    async def renew(self, beat: Beat) -> Renewed | Stale:
        """A heartbeat, on the shard of its run."""
        return await self._beats[self._placement.shard_of(beat.fence.key.partition_id)].ask(beat)

    async def end(self, end: End) -> WorkRow | Stale:
        """The end of a worker's hold, on the shard of its run."""
        return await self._put(end)

    async def end_all(self, ends: Sequence[End]) -> list[WorkRow | Stale | BaseException]:
        """Ends of several holds, each with its own answer or error, in their order."""
        return await asyncio.gather(*(self._put(end) for end in ends), return_exceptions=True)

    def _put(self, end: End) -> asyncio.Future[WorkRow | Stale]:
        return self._ends[self._placement.shard_of(end.fence.key.partition_id)].put(end)

    def token(self, tenant_id: int, fence: Fence) -> str:
        """What a worker shows that it holds this run: opaque, signed, of this tenant alone."""
        raw = _TOKEN.pack(_TOKEN_VERSION, *fence.key, fence.attempt, fence.worker_id)
        return urlsafe_b64encode(raw + self._signature(tenant_id, raw)).decode()

    def fence(self, tenant_id: int, token: str) -> Fence | None:
        """What a token says; None if it is none of this tenant's."""
        try:
            both = urlsafe_b64decode(token.encode("ascii"))
        except ValueError:
            return None
        raw, signature = both[: _TOKEN.size], both[_TOKEN.size :]
        if len(raw) != _TOKEN.size or not hmac.compare_digest(signature, self._signature(tenant_id, raw)):
            return None
        _, partition_id, scheduled_at, job_id, attempt, worker_id = _TOKEN.unpack(raw)
        return Fence(RunKey(partition_id, scheduled_at, job_id), attempt, worker_id, tenant_id)

    def _signature(self, tenant_id: int, raw: bytes) -> bytes:
        signed = struct.pack(">Q", tenant_id) + raw
        return hmac.digest(self._placement.derived_key("work token"), signed, "sha256")[:SIGNATURE_BYTES]

    def _waiting(self) -> tuple[int, Sequence[FunctionKey]]:
        return len(self.hub), self.hub.functions
