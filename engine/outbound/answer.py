"""Answers that are not of the plainest shape: in pieces, chunked, close-delimited, interim, or wrong. llhttp reads."""

from __future__ import annotations

from enum import Enum

import httptools

HEAD_BYTES_MAX = 16_384
# Enough to let an endpoint finish what it says and keep the connection; a longer body is cut off with the connection.
BODY_BYTES_MAX = 262_144
EXCERPT_BYTES = 1_024


class Reading(Enum):
    """How far the reading of an answer has come."""

    MORE = "more"
    DONE = "done"
    HEAD_TOO_LARGE = "head_too_large"
    BROKEN = "broken"
    CUT = "cut"


class AnswerReader:
    """Reads one answer and the interim ones before it. ``status``, ``retry_after`` and ``excerpt`` are the result.

    ``stays_open``: whether the connection may serve another request. ``problem``: what was wrong, for the operator.
    The methods named ``on_…`` are llhttp's callbacks; there is none for headers, so that none becomes an object.
    """

    def __init__(self, to_head: bool) -> None:
        self.status = 0
        self.retry_after: bytes | None = None
        self.excerpt = b""
        self.stays_open = False
        self.problem = ""
        self._to_head = to_head
        self._parser = httptools.HttpResponseParser(self)
        self._heads = bytearray()
        self._interim_heads = 0
        self._fed_bytes = 0
        self._head_done = False
        self._done = False
        self._ends_with_connection = False

    def feed(self, data: bytes) -> Reading:
        """Read on. The caller closes the connection on anything but MORE, and on DONE unless ``stays_open``."""
        while data and not self._done:
            # In two steps at most: nothing beyond the largest head is read before it is known to be one.
            piece = data if self._head_done else data[: HEAD_BYTES_MAX + 1 - self._fed_bytes]
            data = data[len(piece) :]
            self._fed_bytes += len(piece)
            if not self._parse(piece):
                return Reading.BROKEN
            if not self._head_done and self._fed_bytes > HEAD_BYTES_MAX:
                return Reading.HEAD_TOO_LARGE
            if self._fed_bytes > HEAD_BYTES_MAX + BODY_BYTES_MAX:
                return self._cut_off()
        if not self._done:
            return Reading.MORE
        self.stays_open = self.stays_open and not data
        return Reading.DONE

    def finish(self) -> Reading:
        """The peer will send no more."""
        self.stays_open = False
        if self._head_done and self._ends_with_connection:
            return Reading.DONE
        self.problem = "closed before the end of its answer"
        return Reading.CUT

    def on_headers_complete(self) -> None:
        if self._done:
            return
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("an answer in a version of HTTP that was not asked for")
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self._interim_heads += 1
            return
        head = bytes(self._heads.split(b"\r\n\r\n", self._interim_heads + 1)[self._interim_heads]) + b"\r\n"
        self._head_done = True
        self.retry_after = _field(head, b"retry-after")
        chunked = (_field(head, b"transfer-encoding") or b"").lower().endswith(b"chunked")
        self._ends_with_connection = not chunked and _field(head, b"content-length") is None
        self.stays_open = self._parser.should_keep_alive()
        self._done = self._to_head

    def on_body(self, data: bytes) -> None:
        if self._done:
            self.stays_open = False  # a body where none may be: the connection's next answer would begin with it
        elif len(self.excerpt) < EXCERPT_BYTES:
            self.excerpt += data[: EXCERPT_BYTES - len(self.excerpt)]

    def on_message_begin(self) -> None:
        if self._done:
            self.stays_open = False  # a second answer to one request

    def on_message_complete(self) -> None:
        self._done = self._head_done

    def _parse(self, piece: bytes) -> bool:
        if not self._head_done:
            self._heads += piece
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self.problem = "switched protocols unasked"
            return False
        except httptools.HttpParserError as error:
            self.stays_open = False
            self.problem = str(error.__context__ or error)
            return self._done  # what follows a complete answer only costs the connection
        return True

    def _cut_off(self) -> Reading:
        """The call was answered, and its status is known; nobody reads the rest."""
        self.stays_open = False
        return Reading.DONE


def _field(head: bytes, name: bytes) -> bytes | None:
    """The first value of a field in a head of whole lines; ``name`` in lower case."""
    start = head.lower().find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    return head[start : head.index(b"\r\n", start)].strip(b" \t")
