"""Workers of a bench: slots that claim function runs and complete them at once, over plain keep-alive connections.

They speak as a ``Worker`` of the client does (client/secondzero_client/ends.py): what has ended at the same moment is
told in one call, the first of it a little later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from engine.clock import SystemClock
from engine.rules.timestamps import parse_time

WAIT = "5s"
# As in the client.
GATHER_S, RESULTS_MAX = 0.0005, 30


class Start(NamedTuple):
    """A run as a worker saw it begin, and its end confirmed; milliseconds since the epoch."""

    job: str
    scheduled_at_ms: int
    started_ms: int
    ended_ms: int


class Connection(asyncio.Protocol):
    """One keep-alive connection to the API; one call at a time. Streams would cost three times as much a call."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, Any]] | None = None
        self._received = b""

    async def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and body of the answer; asked again on a new connection where the old one has been closed."""
        try:
            return await self._post(path, body)
        except ConnectionError:
            return await self._post(path, body)

    async def _post(self, path: str, body: bytes) -> tuple[int, Any]:
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, *self._address)
        self._answer, self._received = loop.create_future(), b""
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if end and len(body) >= length and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), orjson.loads(body) if body else None))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("closed before the answer"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Worker:
    """So many slots that share one claimer, as a worker's process has them."""

    def __init__(self, url: str, key: str, functions: list[str], slots: int, starts: list[Start]) -> None:
        self._claimer, self._reporter = Connection(url, key), Connection(url, key)
        self._free = slots
        self._done: deque[tuple[dict[str, Any], int]] = deque()
        self._reporting = False
        self._functions = functions
        self._starts = starts
        self._clock = SystemClock()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._claim()
        finally:
            for connection in (self._claimer, self._reporter):
                connection.close()

    async def _claim(self) -> None:
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        asked = {"functions": self._functions, "max": self._free, "wait": WAIT}
        status, answer = await self._claimer.post("/v1/work:claim", orjson.dumps(asked))
        if status != 200:
            self.refused += 1
            await asyncio.sleep(0.1)
            return
        started_ms = self._clock.now_ms()
        self._free -= len(answer["runs"])
        self._done += [(run, started_ms) for run in answer["runs"]]
        if not self._reporting and self._done:
            self._reporting = True
            task = asyncio.get_running_loop().create_task(self._report())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _report(self) -> None:
        """What has ended meanwhile goes with the next call."""
        await asyncio.sleep(GATHER_S)
        while self._done:
            batch = [self._done.popleft() for _ in range(min(len(self._done), RESULTS_MAX))]
            body = orjson.dumps({"runs": [{"token": run["token"]} for run, _ in batch]})
            status, answer = await self._reporter.post("/v1/work:complete", body)
            results = answer["results"] if status == 200 else [{"status": status}] * len(batch)
            ended_ms = self._clock.now_ms()
            for (run, started_ms), result in zip(batch, results, strict=True):
                if result["status"] == 200:
                    self._starts.append(Start(run["job"], parse_time(run["scheduled_at"]), started_ms, ended_ms))
                else:
                    self.refused += 1
            self._free += len(batch)
            self._freed.set()
        self._reporting = False
