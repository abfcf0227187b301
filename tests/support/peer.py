"""Servers that misbehave on purpose, and a client to meet them, for the tests of engine/outbound."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from engine.clock import Clock, SystemClock
from engine.outbound.client import HttpClient, Limits
from engine.outbound.exchange import Outcome, Request
from engine.outbound.head import fixed_head, run_head
from engine.outbound.resolver import Answer
from engine.outbound.target import Guard
from engine.outbound.tls import client_context
from engine.rules.target_text import Target

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One connection as the peer sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.writer = writer
        self._reader = reader

    async def request(self) -> bytes:
        """The next request, head and body; raises IncompleteReadError where there is none."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head + await self._reader.readexactly(int(length or 0))

    async def say(self, *pieces: bytes) -> None:
        """Send pieces, each in a segment of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def read(self) -> bytes:
        """What comes next, b"" at the end."""
        return await self._reader.read(65536)

    def reset(self) -> None:
        """Close with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


class Peer:
    """A server on a free loopback port that treats every connection by a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.visits = 0
        self.ended: list[str] = []  # how each script ended: "" or the name of an exception
        self.port = 0
        self.stop_listening: Callable[[], None] = lambda: None

    async def treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        end = ""
        try:
            await self.script(Visit(self.visits, reader, writer))
        except (OSError, asyncio.IncompleteReadError, RuntimeError) as error:
            end = type(error).__name__  # uvloop's word for writing to a lost connection is RuntimeError
        except asyncio.CancelledError:
            end = "cancelled"
        self.ended.append(end)
        writer.close()


@contextlib.asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Peer]:
    """A running peer."""
    peer = Peer(script)
    server = await asyncio.start_server(peer.treat, host, 0, ssl=tls, backlog=1024)
    peer.port = server.sockets[0].getsockname()[1]
    peer.stop_listening = server.close
    try:
        yield peer
    finally:
        server.close()


def answering(*answers: bytes) -> Script:
    """Answer every request of a connection with the next of these, the last one from then on."""

    async def script(visit: Visit) -> None:
        for i in itertools.count():
            await visit.request()
            await visit.say(answers[min(i, len(answers) - 1)])

    return script


def once(*pieces: bytes) -> Script:
    """Answer the first request in these pieces, then close."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*pieces)

    return script


class Names:
    """A resolver that answers what it is told, and may change its mind."""

    def __init__(self, *answers: str) -> None:
        """``answers``: the addresses of every name, the first asked for first, the last from then on."""
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str) -> Answer:
        self.asked += 1
        addresses = self.answers[min(self.asked, len(self.answers)) - 1] if self.answers else ""
        return Answer(tuple(addresses.split()), 0, "" if addresses else "no such name")


class Outbound:
    """A client under test."""

    def __init__(self, client: HttpClient, guard: Guard) -> None:
        self.client = client
        self._guard = guard
        self._tokens = itertools.count()

    def target(self, url: str) -> Target:
        target = self._guard.judge_url(url)
        assert isinstance(target, Target), target
        return target

    def request(
        self, url: str, method: str = "POST", body: bytes = b"", timeout_ms: int = 5_000, tenant_id: int = 1
    ) -> Request:
        target = self.target(url)
        head = run_head(
            fixed_head(target, method, [], body or None), b"run_1", 1_700_000_000_000, 1, 1_700_000_000, b"v1,x"
        )
        return Request(tenant_id, target.origin, method, head, body, timeout_ms)

    def start(self, url: str, **options: object) -> asyncio.Future[Outcome]:
        """Send; the future's ``token`` is what can be aborted."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.client.send(self.request(url, **options), _tell, future)  # type: ignore[arg-type]
        return future

    async def call(self, url: str, **options: object) -> Outcome:
        return await self.start(url, **options)


def _tell(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    future.set_result(outcome)


@contextlib.asynccontextmanager
async def outbound(
    *,
    names: Names | None = None,
    trusted: Path | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    guard: Guard | None = None,
) -> AsyncIterator[Outbound]:
    """A client that may call loopback."""
    guard = guard or Guard(["127.0.0.0/8", "::1/128"])
    context = client_context(str(trusted) if trusted else None)
    loop = asyncio.get_running_loop()
    client = HttpClient(loop, clock or SystemClock(), guard, names or Names(), limits, context)
    try:
        yield Outbound(client, guard)
    finally:
        await client.close()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test in an event loop of its own, for 30 s at most."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        async def body() -> None:
            await asyncio.wait_for(test(*args, **options), 30)

        uvloop.run(body())

    return run


def url(peer: Any, path: str = "/") -> str:
    return f"http://127.0.0.1:{peer.port}{path}"
