"""The API's process: listens, serves until it is told to stop, finishes the answers in flight.

uvicorn with uvloop and httptools, measured beside granian 2.8 with the same Starlette endpoint (16 connections): 30 to
35 µs of CPU a request against 32 to 40, so the one that runs inside our own process and takes a listening socket as it
is.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from api.routes import App
from api.service import Service
from engine.clock import SystemClock
from engine.config import Settings
from engine.events import Events
from engine.local.listener import open_listener

# Answers in flight get this long after SIGTERM.
DRAIN_S = 10
KEEP_ALIVE_S = 75


def serve(settings: Settings, events: Events, listening: Callable[[int], None] = lambda port: None) -> None:
    """Serve until SIGTERM or SIGINT. ``listening`` is told the port once calls are taken."""
    with (
        open_listener(settings.listen, settings.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(settings, events, listener, listening))


async def _serve(settings: Settings, events: Events, listener: socket.socket, listening: Callable[[int], None]) -> None:
    service = Service(settings, SystemClock(), events)
    try:
        await service.start()
        address, port = listener.getsockname()[:2]
        listening(port)
        events.emit("api.listening", address=address, port=port)
        server = make_server(service, settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
        await server.serve(sockets=[listener])
    finally:
        await service.stop()
    events.emit("api.stopped")


class Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again at its end, and kill the process before ours."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(service: Service, settings: Settings) -> Server:
    """The HTTP server for a service that has started."""
    return Server(
        uvicorn.Config(
            App(service),
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
    )
