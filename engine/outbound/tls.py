"""TLS: always verified, at least 1.2, sessions resumed, and failures named by what was wrong."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from engine.model import OutcomeKind
from engine.outbound.exchange import Failure
from engine.rules.target_text import Origin

READ_BYTES = 65_536
# A handshake takes two or three flights of the peer's, in some pieces; each piece may take this long.
FLIGHT_MS_MAX = 5_000
FLIGHTS_MAX = 32
# How long after a full handshake its session may be taken up: a certificate is looked at again at least this often.
SESSION_AGE_MS_MAX = 600_000
# Python copies a session by writing its certificates out and reading them in again, a quarter of a millisecond: once in
# this time is enough for each origin, and never before a burst. It is copied when the next connection is opened beside
# the one that has it, or after that one was closed, one in this many milliseconds; so many streams wait for that, some
# 20 KB each.
SESSION_RENEWED_MS = 60_000
COPY_INTERVAL_MS = 5
CLOSED_STREAMS_MAX = 4_000
SESSIONS_MAX = 20_000

# X509_V_ERR_... of OpenSSL's x509_vfy.h, which Python passes on as verify_code.
_VERIFY_REASONS = {
    9: "tls_not_yet_valid",
    10: "tls_expired",
    18: "tls_self_signed",
    19: "tls_self_signed",
    26: "tls_wrong_purpose",
    62: "tls_wrong_host",
    64: "tls_wrong_host",
}
_OLD_PROTOCOL = frozenset(
    {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "VERSION_TOO_LOW", "WRONG_SSL_VERSION"}
)


def client_context(trusted_file: str | None = None) -> ssl.SSLContext:
    """The system's trust store, or one file of certificates for receivers on this machine."""
    context = ssl.create_default_context(cafile=trusted_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Python takes SSLKEYLOGFILE from the environment and would write down what opens every session.
    context.keylog_filename = None  # type: ignore[assignment] # None is what switches it off
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsStream:
    """TLS between two memory buffers; whoever holds it moves the bytes."""

    __slots__ = ("incoming", "outgoing", "ssl")

    def __init__(self, context: ssl.SSLContext, host: str, session: ssl.SSLSession | None) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host, session=session)

    async def shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, turn: asyncio.Lock) -> None:
        """Raises ssl.SSLError, OSError or TimeoutError. Those that share ``turn`` take one step each time around the
        event loop; only the peer's time counts, not the wait for a turn.
        """
        for _ in range(FLIGHTS_MAX):
            if await self._step(turn):
                await loop.sock_sendall(sock, self.outgoing.read())
                return
            async with asyncio.timeout(FLIGHT_MS_MAX / 1000):
                await self._exchange_flight(loop, sock)
        raise TimeoutError("the handshake came in too many pieces")

    async def _step(self, turn: asyncio.Lock) -> bool:
        """One step of the handshake, most of a millisecond of this core; whether it was the last."""
        async with turn:
            await asyncio.sleep(0)  # what is due is fired between two steps
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                return False
        return True

    async def _exchange_flight(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        if self.outgoing.pending:
            await loop.sock_sendall(sock, self.outgoing.read())
        data = await loop.sock_recv(sock, READ_BYTES)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()


class _Kept(NamedTuple):
    session: ssl.SSLSession
    verified_ms: int
    kept_ms: int


class Sessions:
    """TLS sessions by tenant and origin; a new connection that takes one up skips most of a handshake."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Origin], _Kept] = {}

    def find(self, key: tuple[int, Origin], now_ms: int) -> ssl.SSLSession | None:
        """A session that may still be taken up."""
        kept = self._kept.get(key)
        return kept.session if kept and now_ms - kept.verified_ms <= SESSION_AGE_MS_MAX else None

    def is_new(self, key: tuple[int, Origin], now_ms: int) -> bool:
        """Whether what is kept need not be renewed yet."""
        kept = self._kept.get(key)
        return kept is not None and now_ms - kept.kept_ms < SESSION_RENEWED_MS

    def keep(self, key: tuple[int, Origin], stream: TlsStream, now_ms: int) -> None:
        """Remember a connection's session; one that was itself resumed keeps the age of its full handshake."""
        if self.is_new(key, now_ms):
            return
        kept = self._kept.pop(key, None)
        verified_ms = now_ms
        if stream.ssl.session_reused:
            if kept is None:
                return
            verified_ms = kept.verified_ms
        session = stream.ssl.session
        if session and (session.has_ticket or stream.ssl.version() == "TLSv1.2"):
            while len(self._kept) >= SESSIONS_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = _Kept(session, verified_ms, now_ms)


class ClosedStreams:
    """Streams of closed connections whose sessions are yet to be kept, one at a time, so that no run waits for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sessions: Sessions, now_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._sessions = sessions
        self._now_ms = now_ms
        self._streams: dict[tuple[int, Origin], TlsStream] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, key: tuple[int, Origin], stream: TlsStream) -> None:
        """Its session is kept soon, unless one was lately or too many wait."""
        if len(self._streams) < CLOSED_STREAMS_MAX and not self._sessions.is_new(key, self._now_ms()):
            self._streams[key] = stream
            if self._timer is None:
                self._timer = self._loop.call_later(COPY_INTERVAL_MS / 1000, self._keep_one)

    def take(self, key: tuple[int, Origin]) -> TlsStream | None:
        """The stream that waits for this key, if one does: its session is wanted now."""
        return self._streams.pop(key, None)

    def clear(self) -> None:
        """Nothing more is kept."""
        self._streams.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _keep_one(self) -> None:
        self._timer = None
        if self._streams:
            key = next(iter(self._streams))
            self._sessions.keep(key, self._streams.pop(key), self._now_ms())
        if self._streams:
            self._timer = self._loop.call_later(COPY_INTERVAL_MS / 1000, self._keep_one)


def tls_failure(error: ssl.SSLError) -> Failure:
    """Which part of the handshake failed, as a class a tenant can act on."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _VERIFY_REASONS.get(error.verify_code, "tls_untrusted")
        return Failure(OutcomeKind.TLS_FAILED, reason, error.verify_message)
    reason = "tls_old_protocol" if error.reason in _OLD_PROTOCOL else "tls_failed"
    return Failure(OutcomeKind.TLS_FAILED, reason, str(error))
