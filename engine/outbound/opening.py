"""Opening a connection: name to addresses, each judged where it is dialled, then TLS. The only place that connects."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from engine.model import OutcomeKind
from engine.outbound.exchange import Failure
from engine.outbound.resolver import Resolver
from engine.outbound.target import Guard
from engine.outbound.tls import TlsStream, tls_failure
from engine.rules.target_text import Origin, Refusal, is_address

CONNECT_MS = 5_000


class Opener:
    """What every connection is opened with."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guard: Guard, resolver: Resolver, context: ssl.SSLContext
    ) -> None:
        self._loop = loop
        self._guard = guard
        self._resolver = resolver
        self._context = context
        self._turn = asyncio.Lock()

    async def open(
        self, origin: Origin, session: ssl.SSLSession | None, turn: int
    ) -> tuple[socket.socket, TlsStream | None, str] | Failure:
        """A connected socket, its TLS and its address. ``turn`` spreads connections over a name's addresses."""
        addresses = await self.addresses(origin)
        if isinstance(addresses, Failure):
            return addresses
        failure = Failure(OutcomeKind.CONNECT_FAILED, "connect_failed")
        for i in range(len(addresses)):
            address = addresses[(turn + i) % len(addresses)]
            opened = await self._open_address(origin, address, session)
            if not isinstance(opened, Failure):
                return *opened, address
            failure = opened
        return failure

    async def addresses(self, origin: Origin) -> tuple[str, ...] | Failure:
        """Every address of an origin; if one of them is refused, all are."""
        if is_address(origin.host):
            addresses: tuple[str, ...] = (origin.host,)
        else:
            answer = await self._resolver.resolve(origin.host)
            if not answer.addresses:
                return Failure(OutcomeKind.DNS_FAILED, "dns_failed", answer.problem or "the name has no address")
            addresses = answer.addresses
        for address in addresses:
            refusal = self._guard.judge_address(origin, address)
            if refusal:
                return _refused(refusal)
        return addresses

    async def _open_address(
        self, origin: Origin, address: str, session: ssl.SSLSession | None
    ) -> tuple[socket.socket, TlsStream | None] | Failure:
        sock = await self._dial(origin, address)
        if isinstance(sock, Failure):
            return sock
        if origin.scheme == "http":
            return sock, None
        try:
            stream = await self._secure(sock, origin.host, session)
        except BaseException:
            sock.close()
            raise
        if isinstance(stream, Failure):
            sock.close()
            return stream
        return sock, stream

    async def _dial(self, origin: Origin, address: str) -> socket.socket | Failure:
        # Judged again on the very address: whoever calls this, nothing is dialled that was not judged.
        refusal = self._guard.judge_address(origin, address)
        if refusal:
            return _refused(refusal)
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_MS / 1000):
                await self._loop.sock_connect(sock, (address, origin.port))
        except TimeoutError:
            sock.close()
            return Failure(OutcomeKind.CONNECT_FAILED, "connect_timeout", f"no answer within {CONNECT_MS} ms")
        except OSError as error:
            sock.close()
            return _connect_failure(error)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _secure(self, sock: socket.socket, host: str, session: ssl.SSLSession | None) -> TlsStream | Failure:
        try:
            stream = TlsStream(self._context, host, session)
            await stream.shake_hands(self._loop, sock, self._turn)
        except TimeoutError as error:
            return Failure(OutcomeKind.TLS_FAILED, "tls_timeout", str(error) or "the peer says nothing")
        except ssl.SSLError as error:
            return tls_failure(error)
        except (OSError, ValueError) as error:  # ValueError: a name that no certificate can be for
            return Failure(OutcomeKind.TLS_FAILED, "tls_failed", str(error))
        return stream


def _connect_failure(error: OSError) -> Failure:
    refused = error.errno == errno.ECONNREFUSED
    return Failure(OutcomeKind.CONNECT_FAILED, "connect_refused" if refused else "connect_failed", str(error))


def _refused(refusal: Refusal) -> Failure:
    """One reason for all: what exactly is refused would tell a tenant what our network looks like."""
    return Failure(OutcomeKind.TARGET_REFUSED, "target_refused", refusal.detail)
