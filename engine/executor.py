"""An executor: one process, one core, one event loop; plans, claims, fires and settles for the partitions it owns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from engine.config import Settings
from engine.errors import Conflict, StoreUnavailable
from engine.outbound.client import HttpClient, Limits
from engine.outbound.head import user_agent_with
from engine.outbound.resolver import CachingResolver, DnsResolver
from engine.outbound.sockets import make_room
from engine.outbound.target import guard_of
from engine.rules.brakes import InForce
from engine.rules.quota import OriginLimits
from engine.seat import Seat
from engine.service import RunOnce
from engine.settings import keys_of
from engine.stages.claim import Claim
from engine.stages.fire import Fire
from engine.stages.fleet_listeners import FleetListeners
from engine.stages.forecast import Forecast
from engine.stages.held import HeldRuns
from engine.stages.lease import Lease
from engine.stages.plan import Plan
from engine.stages.poll import Poll, Sleepers
from engine.stages.settle import HOLD_BACK_MS, Settle
from engine.stages.signals import Signals
from engine.stages.tenancy import Tenancy
from engine.stages.versions import Versions
from engine.store.brakes import REREAD_MS as BRAKES_INTERVAL_MS
from engine.store.brakes import Brakes
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard
from engine.store.tenants import Tenants

# Runs held in memory by one executor: about 1.5 KB each.
HELD_MAX = 250_000

# The stages that are woken when there is something to do look for themselves no less often than this.
WOKEN_INTERVAL_MS = 5_000
POLL_INTERVAL_MS = 250
FORECAST_INTERVAL_MS = 10_000
TENANTS_INTERVAL_MS = 2_000

# In a peak, with so many runs due and not sent, settling steps back, in the other executors of this host too: MySQL's
# work would take the core that fires. What one of them has told holds for so long.
BUSY_RUNS = 100
BUSY_TOLD_MS = 250

# Runs due this soon are still fired by a worker that drains; later ones are handed over.
DRAIN_FIRES_MS = 1_000


class Executor:
    """Everything of one executor, from start to drained."""

    def __init__(self, settings: Settings, seat: Seat) -> None:
        self._settings = settings
        self._seat = seat
        self._events = seat.events
        self._clock = seat.clock

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then drain. A shard that is away at the start holds up no other."""
        starting = asyncio.gather(*self._start())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            starting.result()
            await stopped
        starting.cancel()
        self._events.emit("node.draining", held=len(self._held), in_flight=self._fire.in_flight)
        await self._drain()

    def _start(self) -> list[Coroutine[None, None, None]]:
        settings, clock, events = self._settings, self._clock, self._events
        guard = guard_of(settings)
        wait_s, keys = settings.wait_timeout_s, keys_of(settings)
        self._shards = [
            Shard(dsn, index, wait_timeout_s=wait_s, events=events, keys=keys)
            for index, dsn in enumerate(settings.shards)
        ]
        self._beat_shards = [Shard(dsn, index, connections_max=1) for index, dsn in enumerate(settings.shards)]
        self._held = HeldRuns(clock.now_ms(), HELD_MAX)
        resolver, limits = CachingResolver(DnsResolver(), clock), Limits(connections=make_room(Limits().connections))
        self._client = HttpClient(asyncio.get_running_loop(), clock, guard, resolver, limits)
        listeners = FleetListeners(self._shards[0], guard, clock)
        self._tenancy = Tenancy(Tenants(self._shards[0], clock), listeners, events)
        self._brakes = Brakes(self._shards[0])
        self._leases: list[Lease] = []
        is_told, is_busy = self._tenancy.is_told, self._is_busy
        self._settles = [Settle(shard, self._held, clock, events, is_told, is_busy) for shard in self._shards]
        self._fire = Fire(
            self._held, self._leases, self._client, self._tenancy.known, self._in_force, self._settles, clock, events,
            OriginLimits(settings.origin_starts_per_s, settings.origin_in_flight),
        )  # fmt: skip
        versions = Versions(guard, user_agent=user_agent_with(settings.contact))
        self._tenancy.wake = self._seat.serve("tenants", self._tenancy.run_once, TENANTS_INTERVAL_MS).wake
        self._seat.serve("brakes", self._reread_brakes, BRAKES_INTERVAL_MS)
        self._seat.serve_health(self._health)
        placed: list[list[int]] = [[] for _ in self._shards]
        self._leases += [
            Lease(beat_shard, partitions, settings, clock, events, partial(self._fire.give_up, beat_shard.index))
            for beat_shard, partitions in zip(self._beat_shards, placed, strict=True)
        ]
        return [self._start_shard(shard, placed[shard.index], versions) for shard in self._shards]

    async def _start_shard(self, shard: Shard, partitions: list[int], versions: Versions) -> None:
        """Begin work on a shard once it answers; ``partitions`` is filled then, which its lease and stages hold too."""
        settings, clock, events, is_told = self._settings, self._clock, self._events, self._tenancy.is_told
        partitions += await placed_partitions(shard, len(settings.shards), events)
        lease, settle = self._leases[shard.index], self._settles[shard.index]
        forecast = Forecast(shard, lease)
        plan = Plan(shard, lease, forecast, self._held, self._fire.hold, versions, settings, clock, events, is_told)
        claim = Claim(shard, lease, partitions, self._held, self._fire.hold, versions, clock, events, is_told)
        signals = Signals(shard, lease, self._held, self._fire)
        number, serve = shard.index, self._seat.serve
        serve(f"heartbeat-{number}", lease.run_once, settings.heartbeat_ms)
        plan_service = serve(f"plan-{number}", self._unless_braked(plan.run_once), WOKEN_INTERVAL_MS)
        serve(f"forecast-{number}", forecast.run_once, FORECAST_INTERVAL_MS)
        claim_service = serve(f"claim-{number}", self._unless_braked(claim.run_once), WOKEN_INTERVAL_MS)
        signals_service = serve(f"signals-{number}", signals.run_once, WOKEN_INTERVAL_MS)
        sleepers = Sleepers(plan_service.wake, claim_service.wake, signals_service.wake)
        poll = Poll(shard, lease, forecast, partitions, settings, sleepers)
        serve(f"poll-{number}", poll.run_once, POLL_INTERVAL_MS)
        settle_service = serve(f"settle-{number}", settle.run_once, WOKEN_INTERVAL_MS)
        settle.wake = settle_service.wake
        stages = (plan_service, claim_service, settle_service)
        lease.works_since = lambda boot_ms: all(stage.last_loop_boot_ms >= boot_ms for stage in stages)

    def _in_force(self) -> InForce:
        return self._brakes.in_force

    async def _reread_brakes(self, now_ms: int) -> bool:
        await self._brakes.reread(now_ms)
        return False

    def _unless_braked(self, run_once: RunOnce) -> RunOnce:
        """While everything is stopped nothing is planned or claimed: once released, it is late, or missed."""

        async def run(now_ms: int) -> bool:
            return not self._in_force().everything and await run_once(now_ms)

        return run

    def _is_busy(self) -> bool:
        """Whether firing on this host is in a peak and needs the cores more than settling does.

        A backlog is none: what was due long ago is no better off, and its settling would only be left for the end.
        """
        boot_ms, ready = self._clock.boot_ms(), self._fire.ready
        in_peak = self._fire.lag_ms < HOLD_BACK_MS
        if in_peak and (ready >= BUSY_RUNS or ready + self._client.waiting >= BUSY_RUNS):
            self._seat.board.tell_busy(self._seat.slot, boot_ms)
            return True
        return self._seat.board.any_busy(boot_ms - BUSY_TOLD_MS)

    def _health(self) -> dict[str, Any]:
        client = self._client
        return {
            "held": len(self._held),
            "ready": self._fire.ready,
            "in_flight": self._fire.in_flight,
            "unsettled": sum(len(settle) for settle in self._settles),
            "partitions": [len(lease.partitions) for lease in self._leases],
            "clock_offset_ms": [lease.clock_offset_ms for lease in self._leases],
            "client": {
                "requests": client.requests,
                "opened": client.opened,
                "sent_again": client.sent_again,
                "connections": client.connections,
                "idle": client.idle,
            },
        }

    async def _drain(self) -> None:
        """Hand over what is not due at once, finish what is in flight, write every outcome, release the leases."""
        await self._seat.stop("poll-", "plan-", "forecast-", "claim-")
        await asyncio.gather(*(self._best_effort(lease.drain()) for lease in self._leases))
        soon_ms = self._clock.now_ms() + DRAIN_FIRES_MS
        for run in self._held.unfired():
            if run.due_ms > soon_ms:
                self._fire.abandon(run)
                self._settles[run.shard_index].given_back(run)
        await self._held.empty()
        await self._seat.stop("settle-", "signals-", "heartbeat-", "tenants", "brakes", "health")
        await asyncio.gather(*(self._best_effort(settle.finish()) for settle in self._settles))
        await asyncio.gather(*(self._best_effort(lease.release()) for lease in self._leases))
        self._fire.stop()
        await self._client.close()
        for shard in (*self._shards, *self._beat_shards):
            await shard.close()

    async def _best_effort(self, step: Awaitable[None]) -> None:
        try:
            await step
        except (StoreUnavailable, Conflict) as error:
            self._events.emit("drain.incomplete", error=str(error))
