"""The API's process: listens, serves until it is told to stop, finishes the answers in flight."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
import uvloop

from api.routes import App
from api.service import Service
from engine.clock import SystemClock
from engine.config import Settings
from engine.errors import OperatorError
from engine.events import Events

# Answers in flight get this long after SIGTERM.
DRAIN_S = 10
KEEP_ALIVE_S = 75
BACKLOG = 2_048


def serve(settings: Settings, events: Events, listening: Callable[[int], None] = lambda port: None) -> None:
    """Serve until SIGTERM or SIGINT. ``listening`` is told the port once calls are taken."""
    with _listen(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, events, listener, listening))


async def _serve(settings: Settings, events: Events, listener: socket.socket, listening: Callable[[int], None]) -> None:
    service = Service(settings, SystemClock(), events)
    async with running(service):
        server = uvicorn.Server(_config(App(service)))
        listening(listener.getsockname()[1])
        events.emit("api.listening", address=listener.getsockname()[0], port=listener.getsockname()[1])
        await server.serve(sockets=[listener])
    events.emit("api.stopped")


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    """The service from its start to its stop."""
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


def _listen(settings: Settings) -> socket.socket:
    """The listening socket; bound here, so that a port in use is one clear line."""
    if settings.listen.startswith("fd://"):
        return socket.socket(fileno=int(settings.listen[5:]))
    family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.listen, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OperatorError(f"cannot listen on {settings.listen} port {settings.port}: {error.strerror}") from error
    return listener


def _config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )
