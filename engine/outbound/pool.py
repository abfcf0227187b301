"""The connections of one tenant to one origin, and the requests that wait for one of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.model import OutcomeKind
from engine.outbound.connection import AGE_MS_MAX, IDLE_MS_MAX, Connection, TlsConnection
from engine.outbound.deadlines import NEVER_MS
from engine.outbound.exchange import Failure, Request
from engine.outbound.tls import TlsStream
from engine.rules.target_text import Origin

if TYPE_CHECKING:
    from engine.outbound.client import HttpClient

# A connection is opened when requests have waited this long for one that is open: that one is often free sooner, and a
# handshake costs as much as forty requests. What they waited for its handshake does not count. Their deadlines are
# looked at as often.
PATIENCE_MS = {"http": 20, "https": 250}
# And not where the open ones, at the rate they serve now, will have served all that waits within this.
SOON_MS = {"http": 20, "https": 1_000}
# Where our own event loop is so late, requests have more patience: a handshake would put it back still further.
BEHIND_MS = 20
PATIENCE_BEHIND_MS = {"http": 20, "https": 3_000}
# Opened at once where there is none yet; after that at most as many as there are, so that their number doubles.
OPENED_AT_FIRST = {"http": 4, "https": 1}
# Connections that one pool warms at a time, once the first one stands.
WARMED_AT_ONCE = 16
# Warming is for a second that is at most this far off.
WARMING_MS_MAX = 3_000
# What is wrong with the target itself fails every waiting request; other failures cost the one they were opened for.
_OF_THE_TARGET = frozenset({OutcomeKind.TARGET_REFUSED, OutcomeKind.DNS_FAILED})


class Pool:
    """Never shared between tenants. Idle connections are a stack, so that few are used often and the rest age out."""

    __slots__ = (
        "_opened_ms",
        "_opening",
        "_patience_ms",
        "_served",
        "_turn",
        "_warming",
        "client",
        "connections",
        "idle",
        "key",
        "waiting",
        "watch",
        "watched_ms",
    )

    def __init__(self, client: HttpClient, key: tuple[int, Origin]) -> None:
        self.client = client
        self.key = key
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []
        self.waiting: deque[Request] = deque()
        self.watch, self.watched_ms = 0, NEVER_MS
        self._opened_ms = 0
        self._opening = 0
        self._warming = 0
        self._patience_ms = PATIENCE_MS[key[1].scheme]
        self._served = 0  # of those that waited, since they were last looked at
        self._turn = 0

    def send(self, request: Request, now_ms: int) -> None:
        """Send now on an idle connection, else as soon as there is one."""
        stale = []
        idle = self.idle
        while idle:
            connection = idle.pop()
            # Within the millisecond of its last answer the loop has just read it; any other is looked at first.
            if now_ms == connection.idle_since_ms or connection.usable(now_ms):
                connection.start(request, now_ms)
                break
            stale.append(connection)
        else:
            request.started_ms = now_ms
            self.waiting.append(request)
            self._expect(request)
        for connection in stale:  # last: a pool without connections and requests is dropped
            connection.close()

    def send_again(self, request: Request, broken: Connection) -> None:
        """Send before all others, on a connection that is fresh or has answered just now: idle ones may be as dead."""
        self.client.sent_again += 1
        self.waiting.appendleft(request)
        broken.close()
        self._close_idle(self.idle)
        self._expect(request)

    def release(self, connection: Connection, now_ms: int) -> None:
        """A connection has nothing to do: the longest waiting request has it, else it is idle."""
        if now_ms - connection.opened_ms > AGE_MS_MAX:
            connection.close()
        elif self.waiting:
            self._served += 1
            connection.start(self.waiting.popleft(), now_ms)
        elif self.client.short:
            connection.close()  # others need its place
        else:
            self.idle.append(connection)
            if now_ms + IDLE_MS_MAX < connection.watched_ms:
                self.client.deadlines.watch(connection, now_ms + IDLE_MS_MAX + 1)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self.client.unreserve()
        if not self.connections:
            self.grow()
        self.drop_if_unused()

    def forget(self, request: Request) -> None:
        """A waiting request was aborted."""
        if request in self.waiting:
            self.waiting.remove(request)
            self.drop_if_unused()

    def look(self, now_ms: int) -> int:
        """Time out the waiting requests whose time is over, and open connections for those that waited long enough."""
        for request in [request for request in self.waiting if request.deadline_ms <= now_ms]:
            self.waiting.remove(request)
            self.client.fail(request, Failure(OutcomeKind.TIMEOUT, "timeout", "no connection in time"))
        self.drop_if_unused()
        served, self._served = self._served, 0
        if not self.waiting:
            return NEVER_MS
        waited_ms = now_ms - max(self.waiting[0].started_ms, self._opened_ms)
        is_behind = self.client.deadlines.late_ms >= BEHIND_MS
        patience_ms = PATIENCE_BEHIND_MS[self.key[1].scheme] if is_behind else self._patience_ms
        if waited_ms < patience_ms:
            return now_ms + min(self._patience_ms, patience_ms - max(0, waited_ms))
        if len(self.waiting) * self._patience_ms > served * SOON_MS[self.key[1].scheme]:
            self.grow()
        return now_ms + self._patience_ms

    async def warm(self, count: int) -> Failure | None:
        """Have up to ``count`` connections open and idle; the failure, if it did not come to that."""
        self._warming += 1
        try:
            addresses = await self.client.opener.addresses(self.key[1])
            held = () if isinstance(addresses, Failure) else addresses
            self._close_idle([connection for connection in self.idle if connection.address not in held])
            return addresses if isinstance(addresses, Failure) else await self._warm_up_to(count)
        finally:
            self._warming -= 1
            self.drop_if_unused()

    def retire(self, refused: Callable[[Origin, str], bool]) -> None:
        """Close the connections whose address is refused now, those in use after their answer."""
        for connection in [each for each in self.connections if refused(self.key[1], each.address)]:
            if connection.request is None:
                connection.close()
            else:
                connection.opened_ms = -AGE_MS_MAX

    def grow(self) -> None:
        """Open connections for waiting requests, within the bounds."""
        wanted = min(len(self.waiting), max(OPENED_AT_FIRST[self.key[1].scheme], len(self.connections)))
        while self._opening < wanted and self._reserve():
            self.client.spawn(self._open_for_waiting())

    def drop_if_unused(self) -> None:
        """Nobody needs an empty pool."""
        if not (self.connections or self.waiting or self._opening or self._warming):
            self.client.drop(self)

    async def _warm_up_to(self, count: int) -> Failure | None:
        """The first connection alone: it shows whether there is an endpoint, and brings the session for the others."""
        until_ms = self.client.now_ms() + WARMING_MS_MAX
        failure = await self.client.spawn(self._warm_on(min(count, 1), until_ms))
        if failure or count <= 1:
            return failure
        workers = [self.client.spawn(self._warm_on(count, until_ms)) for _ in range(min(count - 1, WARMED_AT_ONCE))]
        return next((failure for failure in await asyncio.gather(*workers) if failure), None)

    async def _warm_on(self, count: int, until_ms: int) -> Failure | None:
        failure = None
        while not failure:
            async with self.client.warming:
                enough = len(self.idle) + self._opening >= count or self.client.now_ms() >= until_ms
                if enough or not self._reserve():
                    return None
                failure = await self._open()
        return failure

    def _expect(self, request: Request) -> None:
        """A request waits: open a connection if there is none, else look at it again soon."""
        if not self.connections:
            self.grow()
        if request.started_ms + self._patience_ms < self.watched_ms:
            self.client.deadlines.watch(self, request.started_ms + self._patience_ms)

    def _reserve(self) -> bool:
        size = len(self.connections) + self._opening
        if size >= self.client.limits.connections_per_origin or not self.client.reserve(self):
            return False
        self._opening += 1
        return True

    async def _open_for_waiting(self) -> None:
        failure = await self._open()
        if failure:
            self._fail_waiting(failure)
            self.drop_if_unused()

    async def _open(self) -> Failure | None:
        """Open the connection that a place was reserved for."""
        client, opened = self.client, None
        self._turn += 1
        try:
            opened = await client.opener.open(self.key[1], self._session(), self._turn)
        finally:
            self._opening -= 1
            if opened is None or isinstance(opened, Failure):
                client.unreserve()
        if isinstance(opened, Failure):
            return opened
        self.release(self._connect(*opened), client.now_ms())
        return None

    def _session(self) -> ssl.SSLSession | None:
        """The session that the next connection takes up, copied only now from one that has it."""
        client, now_ms = self.client, self.client.now_ms()
        stream = client.closed_streams.take(self.key)
        open_ones = (connection.stream_heard() for connection in self.connections)
        stream = stream or next((found for found in open_ones if found), None)
        if stream:
            client.sessions.keep(self.key, stream, now_ms)
        return client.sessions.find(self.key, now_ms)

    def _connect(self, sock: socket.socket, stream: TlsStream | None, address: str) -> Connection:
        self._opened_ms = now_ms = self.client.now_ms()
        if stream:
            connection: Connection = TlsConnection(self, sock, address, now_ms, stream)
        else:
            connection = Connection(self, sock, address, now_ms)
        self.connections.add(connection)
        self.client.opened += 1
        return connection

    def _fail_waiting(self, failure: Failure) -> None:
        """A connection could not be opened: its request fails, unless others are open that may serve it yet."""
        if failure.kind in _OF_THE_TARGET:
            while self.waiting:
                self.client.fail(self.waiting.popleft(), failure)
        elif self.waiting and not self.connections:
            self.client.fail(self.waiting.popleft(), failure)
            self.grow()

    def _close_idle(self, connections: list[Connection]) -> None:
        for connection in list(connections):
            connection.close()
