"""Names to addresses: asked asynchronously, kept for as long as the answer says, asked once however many wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import aiodns

from engine.clock import Clock

# An answer is kept at least this long even if it says 0 (as the hosts file does), so that a burst asks once; and at
# most this long, so that a name that moved is followed.
TTL_MS_MIN = 1_000
TTL_MS_MAX = 300_000
# That there is no address is believed for this long.
NEGATIVE_MS = 2_000
LOOKUP_MS_MAX = 5_000
# One try of a name server; there are two, within LOOKUP_MS_MAX.
TRY_S = 2
NAMES_MAX = 50_000


class Answer(NamedTuple):
    """The addresses of a name and how long they hold; where there are none, ``problem`` says why."""

    addresses: tuple[str, ...]
    ttl_ms: int
    problem: str = ""


class Resolver(Protocol):
    """What the client asks; tests bring their own."""

    async def resolve(self, host: str) -> Answer:
        """Every address of a name."""


class DnsResolver:
    """The system's name servers and hosts file, through c-ares. Names are absolute: no search list is applied."""

    def __init__(self, name_servers: Sequence[str] | None = None) -> None:
        """``name_servers``: ``address`` or ``address:port``, instead of the system's."""
        self._name_servers = name_servers
        self._ares: aiodns.DNSResolver | None = None  # made in the process and loop that ask

    async def resolve(self, host: str) -> Answer:
        if self._ares is None:
            self._ares = aiodns.DNSResolver(self._name_servers, timeout=TRY_S, tries=2, domains=[])
        try:
            async with asyncio.timeout(LOOKUP_MS_MAX / 1000):
                found = await self._ares.getaddrinfo(host, type=socket.SOCK_STREAM)
        except (aiodns.error.DNSError, TimeoutError) as error:
            return Answer((), NEGATIVE_MS, str(error.args[-1]) if error.args else "no answer in time")
        addresses = tuple(node.addr[0].decode() for node in found.nodes)
        return Answer(addresses, 1000 * min((node.ttl for node in found.nodes), default=0))

    async def close(self) -> None:
        """Ask nothing any more."""
        if self._ares is not None:
            await self._ares.close()


class CachingResolver:
    """Another resolver, asked once for each name while its answer holds."""

    def __init__(self, resolver: Resolver, clock: Clock) -> None:
        self._resolver = resolver
        self._clock = clock
        self._answers: dict[str, tuple[Answer, int]] = {}
        self._asking: dict[str, asyncio.Task[Answer]] = {}

    async def resolve(self, host: str) -> Answer:
        answer, until_ms = self._answers.get(host, (None, 0))
        if answer is not None and self._clock.now_ms() < until_ms:
            return answer
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = asyncio.get_running_loop().create_task(self._ask(host))
            asking.add_done_callback(lambda _: self._asking.pop(host, None))
        return await asyncio.shield(asking)  # who asked first may give up; the others still want to know

    async def _ask(self, host: str) -> Answer:
        answer = await self._resolver.resolve(host)
        hold_ms = min(max(answer.ttl_ms, TTL_MS_MIN), TTL_MS_MAX)
        while len(self._answers) >= NAMES_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers.pop(host, None)  # the newest stand last, the oldest go first
        self._answers[host] = (answer, self._clock.now_ms() + hold_ms)
        return answer
