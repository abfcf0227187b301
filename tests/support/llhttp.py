"""What llhttp reads in a stream of bytes that clients sent."""

from __future__ import annotations

from typing import NamedTuple

import httptools


class ReadRequest(NamedTuple):
    """One request as a server's parser has it; ``headers`` in their order, names as they were sent."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


def read_requests(stream: bytes) -> list[ReadRequest]:
    """Every request of a stream; raises HttpParserError for what is none."""
    reader = _Reader()
    reader.parser.feed_data(stream)
    assert not reader.open, "the stream ends within a request"
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: list[ReadRequest] = []
        self.open = False
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.open, self._url, self._headers, self._body = True, b"", [], b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.found.append(ReadRequest(self.parser.get_method(), self._url, self._headers, self._body))
        self.open = False
