"""The HTTP/1.1 client of the fire path: prepared requests out, outcomes back, no task, future or timer for each.

client      send, abort, warm; which requests are in flight
pool        one tenant's connections to one origin, and what waits for them
connection  one socket and its request: the hot path, and the rule for sending again
answer      llhttp for every answer that engine/_native/wire.pyx does not know at a glance
opening     resolve, judge, dial, shake hands
deadlines   one entry for each connection
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.clock import Clock
from engine.model import OutcomeKind
from engine.outbound.deadlines import Deadlines
from engine.outbound.exchange import Done, Failure, Outcome, Request
from engine.outbound.opening import Opener
from engine.outbound.pool import Pool
from engine.outbound.resolver import Resolver
from engine.outbound.target import Guard
from engine.outbound.tls import ClosedStreams, Sessions, client_context
from engine.rules.target_text import Origin

# Connections that are warmed at the same time; enough for 1,000 a second where opening one takes 60 ms.
WARMING_AT_ONCE = 64

T = TypeVar("T")

# On the fire path: a NamedTuple's own constructor and the look-up of an enum's member take half a microsecond together.
_new_tuple = tuple.__new__
_ANSWERED = OutcomeKind.ANSWERED


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a client. What is above them waits, and times out if it waits too long."""

    connections: int = 20_000
    connections_per_origin: int = 256


class HttpClient:
    """Sends prepared requests; each ends in exactly one call of its ``on_done`` unless it is aborted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        guard: Guard,
        resolver: Resolver,
        limits: Limits | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.loop = loop
        self.now_ms = clock.now_ms
        self.limits = limits or Limits()
        self.deadlines = Deadlines(loop, clock)
        self.sessions = Sessions()
        self.closed_streams = ClosedStreams(loop, self.sessions, clock.now_ms)
        self.opener = Opener(loop, guard, resolver, context or client_context())
        self._requests: dict[Hashable, Request] = {}
        self._pools: dict[tuple[int, Origin], Pool] = {}
        self.requests = 0
        self.opened = 0  # connections; what requests exceed them by was sent on one in use
        self.sent_again = 0  # requests that met a closing connection
        self._connections = 0
        # First come, first served: every pool that warms has its first connection before any has its seventeenth.
        self.warming = asyncio.Semaphore(WARMING_AT_ONCE)
        self.short: dict[Pool, None] = {}  # pools that found no room for a connection, the first one first
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._guard = guard
        guard.on_learned.add(self.close_refused)

    def send(self, request: Request, on_done: Done, token: Hashable) -> None:
        """Send now; ``on_done(token, outcome)`` is called once, never from within this call."""
        now_ms = self.now_ms()
        if token in self._requests:
            raise ValueError(f"{token!r} is in flight already")
        self._requests[token] = request
        self.requests += 1
        request.on_done = on_done
        request.token = token
        request.deadline_ms = now_ms + request.timeout_ms
        pool = self._pools.get((request.tenant_id, request.origin))
        if pool is None:
            pool = self._new_pool((request.tenant_id, request.origin))
        pool.send(request, now_ms)

    def abort(self, token: Hashable) -> bool:
        """Stop a request: its connection is closed, ``on_done`` is not called. False if it is not in flight."""
        request = self._requests.pop(token, None)
        if request is None:
            return False
        pool = self._pools.get((request.tenant_id, request.origin))
        if request.connection and request.connection.request is request:
            request.connection.close(reset=True)
        elif pool:
            pool.forget(request)
        return True

    async def warm(self, tenant_id: int, origin: Origin, count: int) -> Failure | None:
        """Have up to ``count`` connections ready for a coming burst, at most 3 s before it; else what went wrong."""
        key = (tenant_id, origin)
        pool = self._pools.get(key) or self._new_pool(key)
        return await pool.warm(min(count, self.limits.connections_per_origin))

    @property
    def connections(self) -> int:
        """Connections open or being opened."""
        return self._connections

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn on connections that are open."""
        return sum(len(pool.waiting) for pool in self._pools.values() if pool.connections)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return sum(len(pool.idle) for pool in self._pools.values())

    def close_refused(self) -> None:
        """Serve nothing more on connections to what has turned out to be one of our own listeners."""
        for pool in list(self._pools.values()):
            pool.retire(lambda origin, address: self._guard.judge_address(origin, address) is not None)

    async def close(self) -> None:
        """Abort every request and close every connection; nobody is told."""
        self._closing = True
        self._guard.on_learned.discard(self.close_refused)
        self._requests.clear()
        self.deadlines.close()
        pools = list(self._pools.values())
        for pool in pools:
            pool.waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in [connection for pool in pools for connection in pool.connections]:
            connection.close(reset=connection.request is not None)
        self.closed_streams.clear()

    # What follows is for the pools and connections.

    def answer(self, request: Request, status: int, retry_after: bytes | None, excerpt: bytes, now_ms: int) -> None:
        """A request was answered."""
        del self._requests[request.token]
        outcome = (_ANSWERED, status, retry_after, excerpt, request.started_ms, now_ms, True, "", "")
        request.on_done(request.token, _new_tuple(Outcome, outcome))

    def fail(self, request: Request, failure: Failure) -> None:
        """A request ends without an answer; told from the event loop, so that nobody is called back while sending."""
        kind, reason, detail = failure
        outcome = Outcome(kind, None, None, b"", request.started_ms, self.now_ms(), request.bytes_sent, reason, detail)
        self.loop.call_soon(self._tell, request, outcome)

    def spawn(self, opening: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the opening of a connection; it ends with the client at the latest."""
        task = self.loop.create_task(opening)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def reserve(self, pool: Pool) -> bool:
        """Room for one more connection, made by closing idle ones if need be; else the pool is told of the next."""
        while self._connections >= self.limits.connections and self._close_one_idle():
            pass
        if self._closing or self._connections >= self.limits.connections:
            self.short[pool] = None
            return False
        self._connections += 1
        return True

    def unreserve(self) -> None:
        """A connection is gone."""
        self._connections -= 1
        while self.short and self._connections < self.limits.connections and not self._closing:
            pool = next(iter(self.short))
            del self.short[pool]
            pool.grow()

    def drop(self, pool: Pool) -> None:
        """Forget an empty pool."""
        self.short.pop(pool, None)
        self.deadlines.forget(pool)
        if self._pools.get(pool.key) is pool:
            del self._pools[pool.key]

    def _tell(self, request: Request, outcome: Outcome) -> None:
        if self._requests.get(request.token) is request:  # else it was aborted meanwhile
            del self._requests[request.token]
            request.on_done(request.token, outcome)

    def _new_pool(self, key: tuple[int, Origin]) -> Pool:
        pool = self._pools[key] = Pool(self, key)
        return pool

    def _close_one_idle(self) -> bool:
        for pool in self._pools.values():
            if pool.idle:
                pool.idle[0].close()
                return True
        return False
