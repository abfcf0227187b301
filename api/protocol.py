"""HTTP of the API within bounds: how long a head is, how slowly a request comes, how many connections there are.

uvicorn bounds none of these but the pause between two requests, so its protocol is watched from here. Bodies are
bounded where they are read (api/requests.py). Nothing has a timer of its own: connections are looked at once a second.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any, Protocol

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.errors import BAD_REQUEST, HEAD_TOO_LARGE, RETRY_AFTER_S, TIMEOUT, UNAVAILABLE, Problem
from api.responses import PROBLEM_JSON

# The longest URL, an API key and what proxies add fit four times.
HEAD_BYTES_MAX = 16_384
# From the first byte, or from the connection's beginning, to the head's end.
HEAD_S_MAX = 10
# 2 MB at 35 KB a second.
BODY_S_MAX = 60
# What is answered is read in this time, or nobody reads it.
UNREAD_S_MAX = 60
# A refusal is read before the connection is gone: closed at once, with bytes unread, it would be taken back by a reset.
LINGER_S = 2
LOOK_S = 1.0

_NEVER = float("inf")


class Connection(Protocol):
    """What is counted: a connection of HTTP, or one that is still in its handshake."""

    loop: asyncio.AbstractEventLoop

    def look(self, now_s: float) -> None: ...

    def close(self) -> None: ...


class Bounds:
    """The connections of one process to one listener; 0 of an address is no limit (all come through one proxy)."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._connections: dict[Connection, str] = {}
        self._addresses: Counter[str] = Counter()
        self._looking: asyncio.TimerHandle | None = None

    def enter(self, connection: Connection, address: str) -> str | None:
        """Count a connection, unless it is already; or say why it is one too many."""
        if connection in self._connections:
            return None
        owner = _owner(address)
        if len(self._connections) >= self._connections_max:
            return "every connection of this process is in use"
        if 0 < self._per_address_max <= self._addresses[owner]:
            return f"at most {self._per_address_max} connections from one address"
        self._connections[connection] = owner
        self._addresses[owner] += 1
        if self._looking is None:
            self._looking = connection.loop.call_later(LOOK_S, self._look, connection.loop)
        return None

    def hand_over(self, before: Connection, after: Connection) -> None:
        """The same connection, now in other hands."""
        owner = self._connections.pop(before, None)
        if owner is not None:
            self._connections[after] = owner

    def close_doors(self) -> None:
        """End what has not become a connection of HTTP yet."""
        for connection in list(self._connections):
            if not isinstance(connection, BoundedHttp):
                connection.close()

    def leave(self, connection: Connection) -> None:
        owner = self._connections.pop(connection, None)
        if owner is not None:
            self._addresses[owner] -= 1
            if not self._addresses[owner]:
                del self._addresses[owner]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for connection in list(self._connections):
            connection.look(now_s)
        self._looking = loop.call_later(LOOK_S, self._look, loop) if self._connections else None


class BoundedHttp(HttpToolsProtocol):
    """One connection. ``bounds`` is set by the class that ``bounded`` makes for a listener."""

    bounds: Bounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._refused = False
        self._due_s = _NEVER
        self._unread_since_s = _NEVER

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        refused = self.bounds.enter(self, self.client[0] if self.client else "")
        if refused:
            self._refuse(Problem(UNAVAILABLE, refused, headers={"Retry-After": str(RETRY_AFTER_S)}))
            self.transport.close()  # this one is not looked at
        else:
            self._due_s = self.loop.time() + HEAD_S_MAX

    def connection_lost(self, exc: Exception | None) -> None:
        self.bounds.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            if self._due_s == _NEVER:
                self._due_s = self.loop.time() + HEAD_S_MAX
            data = self._feed_head(data)
        if data and not self._refused:
            super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._due_s = self.loop.time() + BODY_S_MAX
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True  # of the next one
        self._due_s = _NEVER
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(BAD_REQUEST, "this is no HTTP/1.1 request"))

    def close(self) -> None:
        self.transport.close()

    def look(self, now_s: float) -> None:
        """Cut off who takes too long to say what it wants, or to read the answer."""
        if now_s >= self._due_s:
            self._due_s = _NEVER
            self._too_slow()
        if self.transport.get_write_buffer_size() == 0:
            self._unread_since_s = _NEVER
        elif self._unread_since_s == _NEVER:
            self._unread_since_s = now_s
        elif now_s - self._unread_since_s >= UNREAD_S_MAX:
            self.transport.abort()

    def _feed_head(self, data: bytes) -> bytes:
        """Hand on no more of a head than is allowed; what is left comes after it."""
        piece = data[: HEAD_BYTES_MAX + 1 - self._head_bytes]
        self._head_bytes += len(piece)
        super().data_received(piece)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self._refused:
            self._refuse(Problem(HEAD_TOO_LARGE, f"a request's head has at most {HEAD_BYTES_MAX:,} bytes"))
        return data[len(piece) :]

    def _too_slow(self) -> None:
        if self._refused or (self._in_head and not self._head_bytes):
            self.transport.close()  # it was told, or has asked nothing
            return
        what, most_s = ("head", HEAD_S_MAX) if self._in_head else ("body", BODY_S_MAX)
        self._refuse(Problem(TIMEOUT, f"a request's {what} must be here within {most_s} s"))

    def _refuse(self, problem: Problem) -> None:
        """Answer, listen to nothing more, and close: what else comes is no request that could be told apart.

        While an earlier request of this connection is being answered, that answer is the last one instead.
        """
        self._refused = True
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and (self._in_head or self.cycle.response_started):
            self.cycle.keep_alive = False
            return
        self.transport.write(_answer(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._due_s = self.loop.time() + LINGER_S
        else:
            self.transport.close()


def bounded(bounds: Bounds) -> type[BoundedHttp]:
    """The protocol of a listener."""
    return type("Http", (BoundedHttp,), {"bounds": bounds})


def _answer(problem: Problem) -> bytes:
    body = orjson.dumps(problem.document())
    fields = {
        "content-type": PROBLEM_JSON,
        "content-length": str(len(body)),
        "connection": "close",
        **{name.lower(): value for name, value in problem.headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    return STATUS_LINE[problem.kind.status] + head + b"\r\n" + body


def _owner(address: str) -> str:
    """Whose connections are counted together: those of an IPv4 address, or of the /64 that an IPv6 host has."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
