"""One connection of a pool: a socket that is idle or carries one request. This is the fire path.

    send ── start ─────────► idle? ── bytes out ── bytes in ── answer complete ── release ── on_done
                              │                        │
                              └ stale: next one        └ broken: again on a fresh connection, or an outcome

It works on the socket itself through the event loop's readers, not through a transport: a write happens when it is
called, so that ``started_ms`` is true and it is known which bytes the kernel took; a close is over when it returns,
so that no outcome is told while its socket is open.

**Sending again.** A server may close an idle connection just when the next request is on its way. Such a request is
sent again on a fresh connection, at once, if nothing of it can have been processed, which is known in two cases only:
the kernel took none of its bytes; or the peer's FIN came while not one of them had been acknowledged. In the second,
the peer had closed before it could read the request, and a server that has begun to close processes nothing that
arrives later (RFC 9112 9.6). A reset says nothing: it carries no acknowledgement that the kernel counts. Everything
else is a failed try (RFC 9110 9.2.2: no blind repetition of what may not be idempotent).
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import termios
from typing import TYPE_CHECKING

from engine._native.wire import read_answer
from engine.model import OutcomeKind
from engine.outbound.answer import AnswerReader, Reading
from engine.outbound.deadlines import NEVER_MS
from engine.outbound.exchange import Failure, Request
from engine.outbound.tls import READ_BYTES, TlsStream

if TYPE_CHECKING:
    from engine.outbound.pool import Pool

# Servers commonly close idle connections after 5 s or more; below that a request seldom meets a closing one.
IDLE_MS_MAX = 4_000
AGE_MS_MAX = 300_000
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_FAILED_READING = {
    Reading.BROKEN: Failure(OutcomeKind.PROTOCOL_ERROR, "answer_malformed"),
    Reading.CUT: Failure(OutcomeKind.CONNECTION_BROKEN, "answer_cut"),
    Reading.HEAD_TOO_LARGE: Failure(OutcomeKind.ANSWER_TOO_LARGE, "answer_head_too_large"),
}


class Connection:
    """Plain TCP; ``TlsConnection`` puts TLS in between."""

    __slots__ = (
        "_client", "_fd", "_reader", "_recv", "_send", "_sent_bytes", "_unsent",
        "address", "idle_since_ms", "opened_ms", "pool", "request", "reused", "socket", "watch", "watched_ms",
    )  # fmt: skip

    def __init__(self, pool: Pool, sock: socket.socket, address: str, now_ms: int) -> None:
        self.pool = pool
        self.socket = sock
        self.address = address
        self.opened_ms = self.idle_since_ms = now_ms
        self.request: Request | None = None
        self.reused = False
        self.watch, self.watched_ms = 0, NEVER_MS
        self._client = pool.client
        self._reader: AnswerReader | None = None
        self._unsent = b""
        self._sent_bytes = 0
        self._fd = sock.fileno()
        self._send = sock.send
        self._recv = sock.recv
        self._client.loop.add_reader(self._fd, self._readable)

    def usable(self, now_ms: int) -> bool:
        """Whether a request may be sent here: young, not idle for long, and still open at this moment."""
        return now_ms - self.idle_since_ms <= IDLE_MS_MAX and now_ms - self.opened_ms <= AGE_MS_MAX and self._silent()

    def start(self, request: Request, now_ms: int) -> None:
        """Send a request; nothing of it has left before ``now_ms``."""
        self.request = request
        request.connection = self
        request.started_ms = now_ms
        if request.deadline_ms < self.watched_ms:
            self._client.deadlines.watch(self, request.deadline_ms)
        self._sent_bytes = 0
        self._put(request.head + request.body)

    def look(self, now_ms: int) -> int:
        """Time out what is in flight, close what has been idle too long."""
        if self._fd < 0:
            return NEVER_MS
        due_ms = self._due_ms()
        if due_ms > now_ms:
            return due_ms
        request = self.request
        self.close(reset=request is not None)
        if request:
            self._client.fail(request, Failure(OutcomeKind.TIMEOUT, "timeout", "no answer in time"))
        return NEVER_MS

    def close(self, reset: bool = False) -> None:
        """Closed when this returns. With ``reset`` the peer is told that nobody waits for its answer."""
        if self._fd < 0:
            return
        self._client.loop.remove_reader(self._fd)
        self._client.loop.remove_writer(self._fd)
        self._client.deadlines.forget(self)
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()
        self._fd = -1
        if self.request:
            self.request.bytes_sent |= self._sent_bytes > 0
            self.request = None
        self.pool.closed(self)

    def stream_heard(self) -> TlsStream | None:
        """Its TLS, if it has one and the peer has said something since the handshake, which is its session."""
        return None

    def _due_ms(self) -> int:
        if self.request:
            return self.request.deadline_ms
        return min(self.idle_since_ms + IDLE_MS_MAX, self.opened_ms + AGE_MS_MAX) + 1

    def _silent(self) -> bool:
        """Open, and nothing has come: what the loop has not read yet is an end, or bytes that nobody asked for."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _write(self, data: bytes) -> None:
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # The peer is gone, but may have answered before: the reader finds out. What is unsent forbids a reuse.
            self._unsent = data
            self._client.loop.call_soon(self._readable)
            return
        self._sent_bytes += sent
        if sent < len(data):
            self._unsent = data[sent:]
            self._client.loop.add_writer(self._fd, self._writable)

    _put = _write

    def _writable(self) -> None:
        self._client.loop.remove_writer(self._fd)
        data, self._unsent = self._unsent, b""
        self._write(data)

    def _readable(self) -> None:
        # Read until an answer is whole or nothing is left: the loop tells of an error but once, and it may have come
        # together with bytes.
        more = self._fd >= 0
        while more:
            try:
                data = self._recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._broken(str(error), fin=False)
                return
            more = self._received(data) if data else self._ended()

    def _received(self, data: bytes) -> bool:
        """Read an answer; whether more of it is to come."""
        request = self.request
        if request is None:
            self.close()  # bytes that nobody asked for: the next answer read here would not be one's own
            return False
        to_head = request.method == "HEAD"
        if self._reader is None:
            answer = read_answer(data, to_head)
            if answer is not None:
                self._answered(request, *answer)
                return False
            self._reader = AnswerReader(to_head)
        return self._act_on(request, self._reader, self._reader.feed(data))

    def _act_on(self, request: Request, reader: AnswerReader, reading: Reading) -> bool:
        if reading is Reading.DONE:
            self._answered(request, reader.status, reader.stays_open, reader.retry_after, reader.excerpt)
        elif reading is not Reading.MORE:
            self.close(reset=True)
            self._client.fail(request, _FAILED_READING[reading]._replace(detail=reader.problem))
        return reading is Reading.MORE

    def _answered(
        self, request: Request, status: int, stays_open: bool, retry_after: bytes | None, excerpt: bytes
    ) -> None:
        now_ms = self._client.now_ms()
        self.request = self._reader = None
        if stays_open and not self._unsent:
            self.reused = True
            self.idle_since_ms = now_ms
            self.pool.release(self, now_ms)
        else:
            self.close(reset=True)  # all of the answer is read; a FIN from us would hold the port for a minute
        self._client.answer(request, status, retry_after, excerpt, now_ms)

    def _ended(self) -> bool:
        if self.request is None or self._reader is None:
            return self._broken("closed without an answer", fin=True)
        return self._act_on(self.request, self._reader, self._reader.finish())

    def _broken(self, detail: str, fin: bool) -> bool:
        request = self.request
        if request and self.reused and self._reader is None and self._unprocessed(fin):
            self.request = None
            self.pool.send_again(request, self)
            return False
        self.close()
        if request:
            self._client.fail(request, Failure(OutcomeKind.CONNECTION_BROKEN, "connection_broken", detail))
        return False

    def _unprocessed(self, fin: bool) -> bool:
        """Whether the peer cannot have processed anything of the request: see the head of this file."""
        return self._sent_bytes == 0 or (fin and self._unacknowledged_bytes() >= self._sent_bytes)

    def _unacknowledged_bytes(self) -> int:
        answer = fcntl.ioctl(self._fd, termios.TIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", answer)[0])


class TlsConnection(Connection):
    """TLS in between: all that has come is decrypted before any of it is read, so that nothing is left behind."""

    __slots__ = ("_decrypt", "_heard", "_incoming", "_outgoing", "_stream")

    def __init__(self, pool: Pool, sock: socket.socket, address: str, now_ms: int, stream: TlsStream) -> None:
        super().__init__(pool, sock, address, now_ms)
        self._stream = stream
        self._decrypt = stream.ssl.read
        self._incoming = stream.incoming
        self._outgoing = stream.outgoing
        self._heard = False

    def stream_heard(self) -> TlsStream | None:
        return self._stream if self._heard else None

    def close(self, reset: bool = False) -> None:
        if self._fd >= 0 and self._heard:
            self._client.closed_streams.add(self.pool.key, self._stream)
        super().close(reset)

    def _put(self, data: bytes) -> None:
        try:
            self._stream.ssl.write(data)
        except ssl.SSLError as error:
            self._broken(str(error), fin=False)
            return
        self._write(self._outgoing.read())

    def _received(self, data: bytes) -> bool:
        self._incoming.write(data)
        try:
            plain, ended = self._decrypt_all()
        except ssl.SSLError as error:
            return self._broken(str(error), fin=False)
        if self._outgoing.pending:
            self._answer_peer()
        self._heard = True
        if ended:
            return self._last_words(plain)
        return Connection._received(self, plain) if plain else True

    def _last_words(self, plain: bytes) -> bool:
        """The peer has ended the stream: an answer is whole by now, and the connection serves no other request."""
        if self.request is None or not plain:
            return self._ended()
        reader = self._reader = self._reader or AnswerReader(self.request.method == "HEAD")
        reading = reader.feed(plain)
        if reading is Reading.MORE:
            reading = reader.finish()
        reader.stays_open = False
        return self._act_on(self.request, reader, reading)

    def _decrypt_all(self) -> tuple[bytes, bool]:
        """What has come, and whether the peer has ended the stream."""
        plain = b""
        try:
            while True:
                piece = self._decrypt(READ_BYTES)
                plain += piece
                if not piece or not self._incoming.pending:
                    return plain, not piece
        except ssl.SSLWantReadError:
            return plain, False

    def _answer_peer(self) -> None:
        """What TLS itself has to say: the reply to a key update."""
        if self._unsent:
            self._unsent += self._outgoing.read()
        else:
            self._write(self._outgoing.read())
