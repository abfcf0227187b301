"""The door of a listener under TLS: a connection is counted, and its time runs, from the moment it is accepted.

asyncio tells a protocol of a connection once its handshake is over; whoever never finishes one would be counted
nowhere. So the listener itself is plain, and each connection is taken up to TLS here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from api import protocol
from api.protocol import BoundedHttp, Bounds
from engine.errors import OperatorError

if TYPE_CHECKING:
    from pathlib import Path

# A client that does not answer our end of TLS is not waited for.
SHUTDOWN_S = 1


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 at least, with this certificate; OperatorError in one line where it cannot be had."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python takes SSLKEYLOGFILE from the environment and would write down what opens every session.
    context.keylog_filename = None  # type: ignore[assignment] # None is what switches it off
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        said = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise OperatorError(f"--tls-cert {certificate}, --tls-key {key}: {said or 'cannot be used'}") from error
    return context


def behind_tls(http: type[BoundedHttp], context: ssl.SSLContext) -> Callable[..., TlsDoor]:
    """What stands in place of a listener's protocol."""

    def make(*args: Any, **kwargs: Any) -> TlsDoor:
        return TlsDoor(http(*args, **kwargs), context)

    return make


class TlsDoor(asyncio.Protocol):
    """One connection until its handshake is over; then the connection is ``http``'s."""

    def __init__(self, http: BoundedHttp, context: ssl.SSLContext) -> None:
        self.loop = http.loop
        self._http = http
        self._context = context
        self._raw = b""
        self._secured: list[bytes] = []
        self._is_shaking = False
        self._transport: asyncio.Transport | None = None
        self._shaking: asyncio.Task[None] | None = None

    @property
    def _bounds(self) -> Bounds:
        return self._http.bounds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if self._bounds.enter(self, str(peer[0]) if peer else ""):
            transport.abort()  # under TLS nobody could read why
        else:
            self._shaking = self.loop.create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """What comes before the handshake is taken up is its beginning, what comes with its end is HTTP's."""
        if self._is_shaking:
            self._secured.append(data)
        else:
            self._raw += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Before the handshake was taken up."""
        if self._shaking is not None:
            self._shaking.cancel()

    def look(self, now_s: float) -> None:
        """Its time is bounded where it is taken up."""

    def close(self) -> None:
        """The process ends: nobody waits for a handshake."""
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._secure(transport)
        except (OSError, asyncio.CancelledError):  # ssl.SSLError is one, and so is what a time-out is told as
            secured = None
        if secured is None or secured.is_closing():
            self._bounds.leave(self)
            transport.abort()
            return
        self._bounds.hand_over(self, self._http)
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        for data in self._secured:
            self._http.data_received(data)

    async def _secure(self, transport: asyncio.Transport) -> asyncio.Transport | None:
        starting = self.loop.create_task(
            self.loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=protocol.HEAD_S_MAX,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        )
        try:
            await asyncio.sleep(0)  # now it has taken the transport over, and will hear of it with the loop's next turn
            self._is_shaking = True
            self.loop.call_soon(self._hand_on, transport.get_protocol())
            return await starting
        finally:
            starting.cancel()

    def _hand_on(self, taken_up: Any) -> None:
        """What was read before: uvloop reads at once, whatever is asked of it."""
        raw = self._raw
        while raw and self._transport is not None and not self._transport.is_closing():
            buffer = taken_up.get_buffer(len(raw))
            size = min(len(buffer), len(raw))
            buffer[:size] = raw[:size]
            taken_up.buffer_updated(size)
            raw = raw[size:]
