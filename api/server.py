"""One process of the API: serves until it is told to stop, finishes the answers in flight.

uvicorn with uvloop and httptools, measured beside granian 2.8 with the same Starlette endpoint (16 connections): 30 to
35 µs of CPU a request against 32 to 40, so the one that runs inside our own process and takes a listening socket as it
is.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop
from starlette.routing import BaseRoute

from api.protocol import Bounds, bounded
from api.routes import App, operator_routes, routes
from api.service import Service
from api.tls_door import behind_tls, server_context
from engine.clock import SystemClock
from engine.config import Settings
from engine.events import Events
from engine.outbound.sockets import make_room
from engine.process import calm_collector

# Answers in flight get this long after SIGTERM.
DRAIN_S = 10
KEEP_ALIVE_S = 75


def serve_sockets(settings: Settings, events: Events, tenants: socket.socket, operators: socket.socket | None) -> None:
    """Serve on listening sockets until SIGTERM or SIGINT, one process's share of the calls."""
    calm_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, events, tenants, operators))


async def _serve(settings: Settings, events: Events, tenants: socket.socket, operators: socket.socket | None) -> None:
    sockets = [tenants] if operators is None else [tenants, operators]
    listening = [each.getsockname()[:2] for each in sockets if each.family != socket.AF_UNIX]
    service = Service(settings, SystemClock(), events, listening)
    try:
        await service.start()
        servers = [(make_server(service, settings, routes(service)), tenants)]
        if operators is not None:
            servers.append((make_server(service, settings, operator_routes(service)), operators))
        _stop_on_signals([server for server, _ in servers])
        await asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in servers))
    finally:
        await service.stop()


class Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again at its end, and kill the process before ours. Workers that wait
    for work are answered at the end, instead of being waited for."""

    def __init__(self, config: uvicorn.Config, service: Service, bounds: Bounds) -> None:
        super().__init__(config)
        self._service = service
        self._bounds = bounds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.work.hub.stop_waiting()
        self._bounds.close_doors()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(service: Service, settings: Settings, table: Sequence[BaseRoute]) -> Server:
    """The HTTP server of a URL table, for a service that has started."""
    per_address = 0 if settings.behind_proxy else settings.api_connections_per_address
    bounds = Bounds(make_room(settings.api_connections), per_address)
    http: Any = bounded(bounds)
    if settings.tls_cert and settings.tls_key:
        http = behind_tls(http, server_context(settings.tls_cert, settings.tls_key))
    return Server(
        uvicorn.Config(
            App(service, table),
            http=http,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        ),
        service,
        bounds,
    )


def _stop_on_signals(servers: Sequence[Server]) -> None:
    def stop(number: int) -> None:
        for server in servers:
            server.handle_exit(number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
