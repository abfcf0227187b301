"""Lease: a worker's heartbeat on one shard, the partitions it owns there, and how long it may trust itself.

Leases are for speed: they say who plans and claims. What must be true rests on keys and fences. They are judged by the
shard's clock; the holder stops trusting its own lease early, counted on CLOCK_BOOTTIME from when it *asked*.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum

from engine.clock import OFFSET_MS_MAX, SLOW_ANSWER_MS, Clock
from engine.config import Settings
from engine.errors import StoreUnavailable
from engine.events import Events
from engine.model import mint_worker_id
from engine.process import host_identity, process_start
from engine.rules.placement import fair_share, surplus
from engine.store.connection import CALL_TIMEOUT_MS, Connection, Duplicate, Row
from engine.store.shard import Shard
from engine.store.statements import Value

# A worker stops trusting its lease when this part of it is left: a second of the default.
TRUST_MARGIN_PART = 10

# A heartbeat not answered for this part of the lease is tried again on another connection, while it still helps.
TIMEOUT_PART = 3

# A stage that has had no good round for a lease and this long, while heartbeats went through, does not work. It may be
# asleep for half of it.
STALLED_MS = 10_000
# A worker with such a stage leaves its partitions to others for so long, if there are others.
STAND_ASIDE_MS = 60_000


class Standing(IntEnum):
    """What a worker says of itself beside its heartbeat. Who stands aside takes partitions only if nobody else can."""

    ABLE = 0
    DRAINING = 1
    ASIDE = 2


class Lease:
    """One worker's standing on one shard. ``shard`` must hold a connection that nobody else uses."""

    def __init__(
        self,
        shard: Shard,
        partitions: list[int],
        settings: Settings,
        clock: Clock,
        events: Events,
        on_lost: Callable[[], None],
    ) -> None:
        self.worker_id = mint_worker_id()
        self.partitions: list[int] = []
        self.live_workers = 1
        self.clock_offset_ms = 0
        self._shard = shard
        self._all_partitions = partitions
        self._settings = settings
        self._clock = clock
        self._events = events
        self._on_lost = on_lost
        self._trusted_until_boot_ms = 0
        self._registered = False
        self._measured = False
        self._draining = False
        self._beating_since_boot_ms = 0
        self._beaten_boot_ms = 0
        self._aside_until_boot_ms = 0
        self.works_since: Callable[[int], bool] = lambda boot_ms: True

    def trusted(self) -> bool:
        """Whether this worker may still believe that nobody has taken its place here."""
        return self._measured and self._clock.boot_ms() < self._trusted_until_boot_ms

    def may_claim_ahead(self) -> bool:
        """Not while draining, nor on a host whose clock is wrong: what it holds ahead it might fire at a wrong time."""
        return not self._draining and abs(self.clock_offset_ms) <= OFFSET_MS_MAX

    async def run_once(self, now_ms: int) -> bool:
        """One heartbeat: renew, count the live workers, take or give partitions."""
        asked_boot_ms = self._clock.boot_ms()
        standing = self._standing(asked_boot_ms)
        async with self._shard.connection() as connection:
            await self._renew(connection, now_ms, standing)
            margin_ms = self._settings.lease_ms // TRUST_MARGIN_PART
            self._trusted_until_boot_ms = asked_boot_ms + self._settings.lease_ms - margin_ms
            self._beaten_boot_ms = asked_boot_ms
            await self._balance(connection, standing)
        return False

    def _standing(self, boot_ms: int) -> Standing:
        """A worker whose heart beats while a stage of it fails must not keep partitions from those that work."""
        if self._draining:
            return Standing.DRAINING
        if boot_ms - self._beaten_boot_ms > self._settings.lease_ms:
            self._beating_since_boot_ms = boot_ms
        since_boot_ms = boot_ms - self._settings.lease_ms - STALLED_MS
        if self._beating_since_boot_ms <= since_boot_ms and not self.works_since(since_boot_ms):
            self._aside_until_boot_ms = boot_ms + STAND_ASIDE_MS
            self._events.emit("worker.stalled", shard=self._shard.index)
        return Standing.ASIDE if boot_ms < self._aside_until_boot_ms else Standing.ABLE

    async def drain(self) -> None:
        """Give every partition away at once; the heartbeat goes on until what is held has ended.

        That it drains is said with it: until then others would leave it its share.
        """
        self._draining = True
        async with self._shard.connection() as connection:
            await connection.execute("heartbeat", self._says(Standing.DRAINING))
            await self._give(connection, self.partitions)

    async def release(self) -> None:
        """The end of this worker: what it still holds may be taken at once."""
        try:
            async with self._shard.connection() as connection:
                await connection.execute("release_worker", {"worker_id": self.worker_id})
        except StoreUnavailable as error:
            self._events.emit("lease.not_released", shard=self._shard.index, error=str(error))

    async def _renew(self, connection: Connection, now_ms: int, standing: Standing) -> None:
        """Asked first also when not registered: the answer to a registration may have been lost on its way."""
        timeout_ms = min(CALL_TIMEOUT_MS, self._settings.lease_ms // TIMEOUT_PART)
        if (await connection.execute("heartbeat", self._says(standing), timeout_ms)).found:
            self._registered = True
            return
        if self._registered:
            self._lose()
        try:
            await self._register(connection, now_ms, timeout_ms)
        except Duplicate:
            # It was registered without having been told, and has been condemned since.
            self._lose()
            await self._register(connection, now_ms, timeout_ms)

    def _says(self, standing: Standing) -> dict[str, Value]:
        return {"worker_id": self.worker_id, "lease_ms": self._settings.lease_ms, "draining": standing}

    async def _register(self, connection: Connection, now_ms: int, timeout_ms: int) -> None:
        started: dict[str, Value] = {
            "worker_id": self.worker_id,
            "lease_ms": self._settings.lease_ms,
            "host": host_identity(),
            "pid": os.getpid(),
            "pid_started": process_start(os.getpid()) or 0,
            "now_ms": now_ms,
        }
        await connection.execute("register_worker", started, timeout_ms)
        self._registered = True

    def _lose(self) -> None:
        """Condemned while we were away: what we held is being given to others, and we begin again under a new id."""
        self._events.emit("lease.lost", shard=self._shard.index, partitions=len(self.partitions))
        self.partitions = []
        self.worker_id = mint_worker_id()
        self._registered = False
        self._on_lost()

    async def _balance(self, connection: Connection, standing: Standing) -> None:
        asked_boot_ms = self._clock.boot_ms()
        live = (await connection.execute("live_workers")).rows
        if not self._measured or self._clock.boot_ms() - asked_boot_ms <= SLOW_ANSWER_MS:
            self._measure_clock(live)
        able = _standing_so(live, Standing.ABLE) or _standing_so(live, Standing.ASIDE)
        self.live_workers = max(1, len(able))
        mine = [row[0] for row in (await connection.execute("my_leases", {"worker_id": self.worker_id})).rows]
        if standing is Standing.DRAINING or self.worker_id not in able:
            await self._give(connection, mine)
            return
        share = fair_share(len(self._all_partitions), len(able), able.index(self.worker_id))
        if len(mine) > share:
            mine = await self._give_surplus(connection, mine, share)
        elif len(mine) < share:
            mine = await self._take(connection, share - len(mine))
        if mine != self.partitions:
            self._events.emit("lease.partitions", shard=self._shard.index, partitions=len(mine))
        self.partitions = mine

    def _measure_clock(self, live: Sequence[Row]) -> None:
        """Before anything is claimed: until then our own clock is the host's, whatever that says."""
        if not live:
            return
        self._measured = True
        self.clock_offset_ms = self._clock.follow(int(live[0][2]), self._shard.index)
        if abs(self.clock_offset_ms) > OFFSET_MS_MAX:
            self._events.emit("clock.off", shard=self._shard.index, offset_ms=self.clock_offset_ms)

    async def _give_surplus(self, connection: Connection, mine: list[int], share: int) -> list[int]:
        given = surplus(mine, share)
        await self._give(connection, given)
        return sorted(set(mine) - set(given))

    async def _give(self, connection: Connection, given: Sequence[int]) -> None:
        self.partitions = [partition for partition in self.partitions if partition not in set(given)]
        if given:
            await connection.execute("give_leases", {"partitions": given, "worker_id": self.worker_id})

    async def _take(self, connection: Connection, wanted: int) -> list[int]:
        free = [row[0] for row in (await connection.execute("free_leases", {"rows_max": wanted})).rows]
        if free:
            await connection.execute("take_leases", {"partitions": free, "worker_id": self.worker_id})
        return [row[0] for row in (await connection.execute("my_leases", {"worker_id": self.worker_id})).rows]


def _standing_so(live: Sequence[Row], standing: Standing) -> list[int]:
    """Ids of the live workers that say this of themselves, in order."""
    return sorted(worker_id for worker_id, stands, _ in live if stands == standing)
