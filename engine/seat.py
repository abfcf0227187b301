"""What the executor, the keeper and the recorder of a host have alike: a slot on its board, services, health told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from engine.clock import SystemClock
from engine.events import Events
from engine.health import Board, Report
from engine.metrics import Metrics
from engine.service import RunOnce, Service

HEALTH_INTERVAL_MS = 500


class Seat:
    """One process's place on its host: it starts, tells of and ends the services that the process runs."""

    def __init__(
        self, process: str, board: Board, slot: int, events: Events, metrics: Metrics, clock: SystemClock
    ) -> None:
        """``slot`` is its own on the board; all processes of the host share that."""
        self.board = board
        self.slot = slot
        self.events = events
        self.clock = clock
        self._report = Report(process, clock, metrics)
        self._services: list[Service] = []

    def serve(self, name: str, run_once: RunOnce, interval_ms: int) -> Service:
        """Run it from now on; see Service."""
        service = Service(name, run_once, interval_ms, self.clock, self.events)
        service.start()
        self._services.append(service)
        return service

    def serve_health(self, more: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Keep the slot true, with ``more`` that this kind of process has to say."""

        async def write(now_ms: int) -> bool:
            self.board.write(self.slot, {**self._report.state(self._services), **more()})
            return False

        self.serve("health", write, HEALTH_INTERVAL_MS)

    async def stop(self, *prefixes: str) -> None:
        """End the services whose names begin so, each after the round in progress."""
        ending = [service for service in self._services if service.name.startswith(prefixes)]
        await asyncio.gather(*(service.stop() for service in ending))

    async def stop_all(self) -> None:
        await asyncio.gather(*(service.stop() for service in self._services))

    async def abort_all(self) -> None:
        """End every service in the middle of its round."""
        await asyncio.gather(*(service.abort() for service in self._services))
