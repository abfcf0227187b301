"""A small HTTP receiver in a process of its own that records every request: what the demo and the tests call.

The path and its query say how a request is answered:

    /any/path            200 at once
    /status/503          that status; ``retry_after=2`` adds the header
    /slow?ms=500         200 after half a second (``ms`` works on every path)
    /flaky?n=2           503 to the first two requests of an Idempotency-Key, then 200
    /body?bytes=4096     200 with a body of that size (``bytes`` works on every path)
    /hang                no answer
    /drop                the connection is closed without an answer

A job's name is the last part of its path. ``GET /_records?from=N`` answers the records from number N on as a JSON list,
``GET /_count`` their number. One request at a time per connection: pipelining is not supported.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from http.client import responses
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote
from urllib.request import urlopen

import httptools
import orjson
import uvloop

from engine.clock import wall_ms
from engine.local.listener import BACKLOG, open_listener
from engine.local.process import end_child, spawn
from engine.local.record import Call

# A record is a few hundred bytes; a receiver that has no room left says so (507) instead of growing.
RECORDS_MAX = 2_000_000
RECORDS_PAGE = 20_000
BODY_BYTES_MAX = 64 << 20
FILE_FLUSH_MS = 100
CONTROL_TIMEOUT_S = 10
STOP_S_MAX = 5


class Receiver:
    """The process as its starter sees it: on 127.0.0.1, on the same port after every start."""

    def __init__(self, log: Path, *, record: Path | None = None, port: int = 0) -> None:
        """``record`` is a file to which every finished request is appended, one JSON list a line."""
        self.port = port
        self._log = log
        self._record = record
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The socket is listening before this returns: a request sent at once waits for the process."""
        with open_listener("127.0.0.1", self.port) as listener, self._log.open("ab") as output:
            self.port = listener.getsockname()[1]
            arguments = ["--fd", str(listener.fileno()), *(["--record", str(self._record)] if self._record else [])]
            command = [sys.executable, "-m", "engine.local.receiver", *arguments]
            self._child = spawn(command, output, signal.SIGKILL, pass_fds=[listener.fileno()])

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._child.poll() if self._child else None

    def stop(self) -> None:
        if self._child:
            end_child(self._child, STOP_S_MAX)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Receiver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def count(self) -> int:
        """Requests that have arrived."""
        return int(self._get("/_count")["count"])

    def calls(self) -> list[Call]:
        """Everything that has arrived so far; ``status`` is 0 where no answer has been sent."""
        return [Call(*row[: len(Call._fields)]) for row in self.rows()]

    def rows(self) -> list[list[Any]]:
        """The same with method and path: the fields of ``Row``."""
        found: list[list[Any]] = []
        while page := self._get(f"/_records?from={len(found)}"):
            found.extend(page)
        return found

    def _get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=CONTROL_TIMEOUT_S) as answer:  # noqa: S310 - our own address
            return orjson.loads(answer.read())


class Answer(NamedTuple):
    """What to do with one request; status 0 sends nothing."""

    status: int = 200
    delay_ms: int = 0
    body: bytes = b""
    retry_after: str = ""
    close: bool = False


def plan_answer(path: str, query: Mapping[str, str], seen: int) -> Answer:
    """The answer to a request; ``seen`` is how often its Idempotency-Key has come before. 400: not a number."""
    verb, _, rest = path[1:].partition("/")
    try:
        delay_ms, body_bytes = int(query.get("ms", 0)), int(query.get("bytes", 0))
        failures, status = int(query.get("n", 1)), int(rest.partition("/")[0]) if verb == "status" else 200
    except ValueError:
        return Answer(400)
    if verb == "flaky" and seen < failures:
        status = 503
    if verb == "hang" or verb == "drop":
        return Answer(0, delay_ms, close=verb == "drop")
    return Answer(status, delay_ms, b"x" * min(body_bytes, BODY_BYTES_MAX), query.get("retry_after", ""))


class Row(NamedTuple):
    """One record: the fields of ``Call``, then how and where it came."""

    arrival_ms: int
    key: str
    attempt: int
    scheduled_at_ms: int
    name: str
    status: int
    method: str
    path: str


class Record:
    """Rows in order of arrival, in memory and, once they are answered or given up, in a file."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self.rows: list[Row] = []
        self.seen: Counter[str] = Counter()
        self._file = file

    @property
    def full(self) -> bool:
        return len(self.rows) >= RECORDS_MAX

    def arrived(self, row: Row) -> int:
        """Add a row; returns its number."""
        self.rows.append(row)
        self.seen[row.key] += 1
        return len(self.rows) - 1

    def ended(self, number: int, status: int) -> None:
        row = self.rows[number] = self.rows[number]._replace(status=status)
        if self._file:
            self._file.write(orjson.dumps(tuple(row)) + b"\n")

    def flush(self) -> None:
        if self._file:
            self._file.flush()


class Connection(asyncio.Protocol):
    """One client: reads a request, records it when its head is complete, answers when it is whole."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._number: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._ended(0)

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._answer = Answer()

    def on_url(self, piece: bytes) -> None:
        self._url += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        arrival_ms = wall_ms()
        path, _, query = self._url.decode("latin-1").partition("?")
        self._query = dict(parse_qsl(query))
        self._path = unquote(path)
        if not path.startswith("/_"):
            self._arrived(arrival_ms)

    def on_message_complete(self) -> None:
        if self._path.startswith("/_"):
            self._answer = Answer(body=orjson.dumps(self._control(), default=tuple))
        if self._answer.delay_ms:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._answer.delay_ms / 1000, self._send)
        else:
            self._send()

    def _arrived(self, arrival_ms: int) -> None:
        if self._record.full:
            self._answer = Answer(507)
            return
        key = self._header(b"idempotency-key")
        self._answer = plan_answer(self._path, self._query, self._record.seen[key])
        row = Row(
            arrival_ms,
            key,
            int(self._header(b"x-attempt") or 0),
            rfc3339_ms(self._header(b"x-scheduled-at")),
            self._path.rpartition("/")[2],
            0,
            self._parser.get_method().decode(),
            self._url.decode("latin-1"),
        )
        self._number = self._record.arrived(row)

    def _control(self) -> Any:
        if self._path == "/_count":
            return {"count": len(self._record.rows)}
        first = int(self._query.get("from", 0))
        return self._record.rows[first : first + RECORDS_PAGE]

    def _send(self) -> None:
        self._timer = None
        answer = self._answer
        if answer.status:
            self._transport.write(render(answer))
            self._ended(answer.status)
        if answer.close or not self._parser.should_keep_alive():
            self._transport.close()

    def _ended(self, status: int) -> None:
        if self._number is not None:
            self._record.ended(self._number, status)
            self._number = None

    def _header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")


def rfc3339_ms(text: str) -> int:
    """Milliseconds since the epoch; 0 where a request has no such header or it is no time."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0


def render(answer: Answer) -> bytes:
    reason = responses.get(answer.status, "")
    retry_after = f"retry-after: {answer.retry_after}\r\n" if answer.retry_after else ""
    head = f"HTTP/1.1 {answer.status} {reason}\r\n{retry_after}content-length: {len(answer.body)}\r\n\r\n"
    return head.encode() + answer.body


async def serve(listener: socket.socket, file: IO[bytes] | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    record, stopped = Record(file), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(lambda: Connection(record), sock=listener, backlog=BACKLOG)
    while not stopped.is_set():
        record.flush()
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), FILE_FLUSH_MS / 1000)
    server.close()
    record.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A receiver that records every request.")
    parser.add_argument("--fd", type=int, required=True, help="a listening socket, inherited")
    parser.add_argument("--record", type=Path, help="file to append to")
    args = parser.parse_args()
    file = args.record.open("ab") if args.record else None
    uvloop.run(serve(open_listener(f"fd://{args.fd}", 0), file))


if __name__ == "__main__":
    main()
