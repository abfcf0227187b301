"""The keeper: one process a host for what belongs to no executor: reaping, sweeping, days, and the engine's health."""

from __future__ import annotations

import asyncio

import uvicorn

from engine.config import Settings
from engine.health_app import health_app
from engine.listening import databases_of
from engine.outbound.client import HttpClient
from engine.outbound.head import user_agent_with
from engine.outbound.resolver import CachingResolver, DnsResolver
from engine.outbound.target import guard_of
from engine.process import host_identity, process_start
from engine.rules.brakes import BrakeKind, InForce
from engine.seat import Seat
from engine.service import RunOnce
from engine.settings import keys_of
from engine.stages.backlog import Backlog
from engine.stages.days import Days
from engine.stages.fleet_listeners import FleetListeners
from engine.stages.lapse import LapsedWork
from engine.stages.neighbours import Neighbours
from engine.stages.notify import Notify
from engine.stages.reap import Reap
from engine.stages.record import Record
from engine.stages.rollup import Rollup
from engine.stages.sweep import Sweep
from engine.stages.tidy import Tidy
from engine.stages.timekeep import Timekeep
from engine.stages.unclaimed import Unclaimed
from engine.stages.versions import Versions
from engine.stages.work_seen import WorkSeen
from engine.store.brakes import REREAD_MS as BRAKES_INTERVAL_MS
from engine.store.brakes import Brake, Brakes
from engine.store.fleet import placed_partitions
from engine.store.shard import Shard
from engine.store.tenants import REREAD_MS, Tenants

REAP_INTERVAL_MS = 500
NEIGHBOURS_INTERVAL_MS = 500
LAPSE_INTERVAL_MS = 1_000
UNCLAIMED_INTERVAL_MS = 1_000
SWEEP_INTERVAL_MS = 10_000
NOTIFY_INTERVAL_MS = 1_000
RECORD_INTERVAL_MS = 10_000
TIDY_INTERVAL_MS = 10_000
DAYS_INTERVAL_MS = 5_000
BACKLOG_INTERVAL_MS = 5_000
ROLLUP_INTERVAL_MS = 10_000


class Keeper:
    """Everything of the keeper, from start to stopped."""

    def __init__(self, settings: Settings, seat: Seat) -> None:
        self._settings = settings
        self._seat = seat
        self._events = seat.events
        self._clock = seat.clock

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set."""
        server = self._health_server()
        serving = asyncio.get_running_loop().create_task(server.serve())
        wait_s, keys = self._settings.wait_timeout_s, keys_of(self._settings)
        shards = [
            Shard(dsn, index, wait_timeout_s=wait_s, events=self._events, keys=keys)
            for index, dsn in enumerate(self._settings.keeper_shards or self._settings.shards)
        ]
        self._guard = guard_of(self._settings)
        resolver = CachingResolver(DnsResolver(), self._clock)
        self._client = HttpClient(asyncio.get_running_loop(), self._clock, self._guard, resolver)
        places = [("127.0.0.1", self._settings.metrics_port), *databases_of(self._settings)]
        self._listeners = FleetListeners(shards[0], self._guard, self._clock, places)
        self._tenants = Tenants(shards[0], self._clock)
        self._brakes = Brakes(shards[0])
        self._seat.serve("brakes", self._reread_brakes, BRAKES_INTERVAL_MS)
        self._seat.serve("tenants", self._reread_tenants, REREAD_MS)
        starting = [asyncio.get_running_loop().create_task(self._start_shard(shard)) for shard in shards]
        self._seat.serve_health()
        await stop.wait()
        for task in starting:
            task.cancel()
        await self._seat.stop_all()
        server.should_exit = True
        await serving
        await self._client.close()
        for shard in shards:
            await shard.close()

    async def _start_shard(self, shard: Shard) -> None:
        partitions = await placed_partitions(shard, len(self._settings.shards), self._events)
        number, serve = shard.index, self._seat.serve
        timekeep = Timekeep(shard, self._clock, self._events)
        serve(f"clock-{number}", timekeep.run_once, self._settings.heartbeat_ms)
        await timekeep.followed.wait()
        versions = Versions(self._guard, user_agent=user_agent_with(self._settings.contact))
        reap = Reap(shard, partitions, versions, self._settings, self._clock, self._events)
        reap_service = serve(f"reap-{number}", reap.run_once, REAP_INTERVAL_MS)
        lapse = LapsedWork(shard, partitions, versions, self._tenants.is_told, self._clock, self._events)
        serve(f"lapse-{number}", lapse.run_once, LAPSE_INTERVAL_MS)
        unclaimed = Unclaimed(shard, versions, self._tenants, self._tenants.is_told, self._clock, self._events)
        serve(f"unclaimed-{number}", unclaimed.run_once, UNCLAIMED_INTERVAL_MS)
        neighbours = Neighbours(shard, host_identity(), process_start, reap_service.wake, self._events)
        notify = Notify(shard, self._client, self._guard, self._tenants, self._in_force, versions, self._events)
        backlog = Backlog(shard, partitions, self._events)
        serve(f"backlog-{number}", backlog.run_once, BACKLOG_INTERVAL_MS)
        serve(f"work-seen-{number}", WorkSeen(shard, self._clock, self._events).run_once, BACKLOG_INTERVAL_MS)
        serve(f"days-{number}", Days(shard, self._events).run_once, DAYS_INTERVAL_MS)
        serve(f"neighbours-{number}", neighbours.run_once, NEIGHBOURS_INTERVAL_MS)
        serve(f"notify-{number}", self._once_fleet_is_known(notify.run_once), NOTIFY_INTERVAL_MS)
        record = Record(shard, partitions, self._settings, self._events)
        serve(f"record-{number}", record.run_once, RECORD_INTERVAL_MS)
        rollup = Rollup(shard, partitions, self._clock, self._events)
        serve(f"rollup-{number}", rollup.run_once, ROLLUP_INTERVAL_MS)
        tidy = Tidy(shard, partitions, self._settings, self._events)
        serve(f"tidy-{number}", tidy.run_once, TIDY_INTERVAL_MS)
        serve(f"sweep-{number}", Sweep(shard, partitions, self._events).run_once, SWEEP_INTERVAL_MS)

    def _in_force(self) -> InForce:
        return self._brakes.in_force

    async def _reread_brakes(self, now_ms: int) -> bool:
        """Each use is told here, once a host, with who."""
        pulled, released = await self._brakes.reread(now_ms)
        for brake in pulled:
            self._events.emit("brake.pulled", **_about(brake), who=brake.pulled_by, note=brake.note)
        for brake in released:
            self._events.emit("brake.released", **_about(brake), who=brake.released_by)
        return False

    def _once_fleet_is_known(self, run_once: RunOnce) -> RunOnce:
        """No notice is sent before the guard knows where the fleet listens."""

        async def run(now_ms: int) -> bool:
            return self._listeners.known and await run_once(now_ms)

        return run

    async def _reread_tenants(self, now_ms: int) -> bool:
        await self._listeners.reread()
        await self._tenants.reread()
        return False

    def _health_server(self) -> uvicorn.Server:
        app = health_app(self._seat.board, self._settings, self._clock)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self._settings.metrics_port, log_config=None, lifespan="off", access_log=False
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        return server


def _about(brake: Brake) -> dict[str, object]:
    return {"kind": BrakeKind(brake.kind).name.lower(), "what": brake.what}
