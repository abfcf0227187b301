"""The API's processes on one host: they share the listening sockets, and the parent starts again what dies.

One is the default: Python uses one core a process, and two share out what could be one statement. Measured on two cores
that MySQL is on as well, a PUT costs 480 µs of CPU with one and 730 with two. A larger machine wants more of them; a
tenant's limit of calls is divided by their number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from api.server import serve_sockets
from engine.clock import SystemClock
from engine.config import Settings
from engine.errors import StoreUnavailable
from engine.events import Events
from engine.history.check import check_apart
from engine.local.listener import open_listener
from engine.process import fork_child
from engine.settings import keys_of, with_history
from engine.store.fleet import FleetRow
from engine.store.placement import Placement
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from migrations.apply import check_applied

# Who dies again and again is started again this often.
RESTART_MS = 1_000
# Beyond the time that answers in flight get.
STOP_S_MAX = 14

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def serve(settings: Settings, events: Events) -> None:
    """Serve until SIGTERM or SIGINT; OperatorError if the shards are no fleet or a port cannot be had."""
    with ExitStack() as opened:
        tenants = opened.enter_context(open_listener(settings.listen, settings.port))
        operators = None
        if settings.admin_port is not None:
            operators = opened.enter_context(open_listener(settings.admin_listen, settings.admin_port))
        fleet = asyncio.run(_check(settings))
        settings = with_history(settings, fleet.history if fleet else None)
        away = check_apart(settings, fleet.fleet_id if fleet else None)
        if away:
            events.emit("history.unavailable", error=away)
        for listener in (tenants, operators):
            if listener is not None:
                events.emit("api.listening", address=listener.getsockname()[0], port=listener.getsockname()[1])
        if settings.api_processes == 1:
            serve_sockets(settings, events, tenants, operators)
        else:
            _Processes(settings, events, tenants, operators).run()
    events.emit("api.stopped")


async def _check(settings: Settings) -> FleetRow | None:
    """What is wrong with the shards is said once, before anything starts; one that is away may come. The fleet's row,
    None where no shard answers."""
    keys = keys_of(settings)
    placement = Placement([Shard(dsn, index, keys=keys) for index, dsn in enumerate(settings.shards)])
    try:
        await placement.read()
        for shard in placement.shards:
            with suppress(StoreUnavailable):
                await check_applied(shard)
        with suppress(StoreUnavailable):
            await adopt_keys(placement.first)
        return placement.fleet
    finally:
        await placement.close()


class _Processes:
    """The children by place; 0 stands for one that is to be started."""

    def __init__(
        self, settings: Settings, events: Events, tenants: socket.socket, operators: socket.socket | None
    ) -> None:
        self._settings = settings
        self._events = events
        self._sockets = (tenants, operators)
        self._clock = SystemClock()
        self._pids = [0] * settings.api_processes
        self._start_at_ms = [0] * settings.api_processes

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        stopping = False
        while not stopping:
            self._start_what_is_due()
            caught = signal.sigtimedwait(_SIGNALS, RESTART_MS / 1000)
            self._collect()
            stopping = caught is not None and caught.si_signo != signal.SIGCHLD
        self._stop()

    def _start_what_is_due(self) -> None:
        for place, pid in enumerate(self._pids):
            if pid == 0 and self._start_at_ms[place] <= self._clock.boot_ms():
                self._pids[place] = self._fork()
                self._start_at_ms[place] = self._clock.boot_ms() + RESTART_MS

    def _fork(self) -> int:
        def body() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            serve_sockets(self._settings, self._events, *self._sockets)

        return fork_child(body, lambda error: self._events.emit("stage.failed", stage="api", error=error))

    def _collect(self) -> None:
        """Notes who has ended."""
        for place, pid in enumerate(self._pids):
            if pid and (ended := _ended(pid)) is not None:
                self._events.emit("child.ended", child="api", pid=pid, status=ended)
                self._pids[place] = 0

    def _stop(self) -> None:
        """All at once, each with the time that its answers need; nobody is let in meanwhile."""
        for listener in self._sockets:
            if listener is not None:
                listener.close()
        running = [pid for pid in self._pids if pid]
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        deadline_ms = self._clock.boot_ms() + STOP_S_MAX * 1000
        while running := _still_running(running):
            if self._clock.boot_ms() > deadline_ms:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, RESTART_MS / 1000)


def _still_running(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if _ended(pid) is None]


def _ended(pid: int) -> int | None:
    """The exit status of a child that has ended."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
