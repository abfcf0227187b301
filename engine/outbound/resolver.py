"""Names to addresses, asynchronously and cached by their TTL."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple, Protocol


class Answer(NamedTuple):
    """The addresses of a name, and for how long they hold."""

    addresses: tuple[str, ...]
    ttl_ms: int


class Resolver(Protocol):
    """What the client asks; tests bring their own."""

    async def resolve(self, host: str) -> Answer:
        """Every address of the name; raises OSError where there is none."""


class SystemResolver:
    """The system's resolver, in a thread."""

    async def resolve(self, host: str) -> Answer:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return Answer(tuple(str(entry[4][0]) for entry in found), 30_000)
