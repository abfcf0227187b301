"""A proxy of bytes in front of one shard: what a network can do to it, done on demand.

It reads just enough of MySQL's protocol to know where a statement begins and that it is a COMMIT: of a plan, a claim, a
settlement or a change of a job, told apart by a piece of a statement sent in that transaction. Everything runs in a
thread of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import Dsn
from tests.support.wait import PAUSE_S

# A piece of the statement that tells each kind of transaction from the others.
PLAN = b"INSERT INTO runs"
CLAIM = b"SET r.state = 2, r.worker_id"
SETTLE = b"SET r.state = k.state, r.tries = k.tries"
PUT = b"INSERT INTO jobs"
CHANGE = b"UPDATE jobs SET alive"
KINDS = (PLAN, CLAIM, SETTLE, PUT, CHANGE)

COM_QUERY = 3
HEAD_BYTES = 4
CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class Cut:
    """Break the connection at the next ``times`` COMMITs of one kind: before the server gets it, or after it has."""

    kind: bytes
    before: bool
    times: int
    done: int = 0


class Proxy:
    """Listens on a Unix socket and passes on to another, until told otherwise. Methods may be called by any thread."""

    def __init__(self, listen: Path, target: Path) -> None:
        self.cuts: list[Cut] = []
        self.delay_ms = 0
        self.statements = 0
        self._listen = listen
        self._target = target
        self._refusing = False
        self._pairs: set[Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._flowing = self._call(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def dsn(self, dsn: Dsn) -> Dsn:
        """The same database through this proxy."""
        return replace(dsn, unix_socket=str(self._listen))

    def refuse(self) -> None:
        """As if the server were down: what is connected breaks, and nobody connects."""
        self._refusing = True
        self.cut_all()

    def swallow(self) -> None:
        """As if the network lost every packet: connections stand, and nothing gets through."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        """What was swallowed arrives now, late, as it does when a network comes back."""
        self._refusing = False
        self._loop.call_soon_threadsafe(self._flowing.set)

    def cut_all(self) -> None:
        """Break every connection there is."""
        self._loop.call_soon_threadsafe(lambda: [pair.abort() for pair in list(self._pairs)])

    def cut(self, kind: bytes, *, before: bool, times: int = 1) -> Cut:
        """Break the connection at COMMITs of this kind; the answer's ``done`` counts them."""
        cut = Cut(kind, before, times)
        self.cuts.append(cut)
        return cut

    def commit_passes(self, seen: set[bytes]) -> tuple[bool, bool]:
        """Whether a COMMIT is passed on, and whether the connection is cut then; ``seen``: its transaction's kinds."""
        for cut in self.cuts:
            if cut.done < cut.times and cut.kind in seen:
                cut.done += 1
                return not cut.before, True
        return True, False

    async def _start(self) -> asyncio.Event:
        self._server = await asyncio.start_unix_server(self._accept, self._listen, limit=CHUNK_BYTES)
        flowing = asyncio.Event()
        flowing.set()
        return flowing

    async def _stop(self) -> None:
        self._server.close()
        self._flowing.set()
        while self._pairs:
            for pair in list(self._pairs):
                pair.abort()
            await asyncio.sleep(PAUSE_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = Pair(self, reader, writer, server_reader, server_writer, self._flowing)
        self._pairs.add(pair)
        try:
            await pair.run()
        finally:
            self._pairs.discard(pair)

    def _call(self, body: Callable[[], object]) -> object:
        return asyncio.run_coroutine_threadsafe(body(), self._loop).result()  # type: ignore[arg-type]


class Pair:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
        flowing: asyncio.Event,
    ) -> None:
        self._proxy = proxy
        self._client_reader = client_reader
        self._client_writer = client_writer
        self._server_reader = server_reader
        self._server_writer = server_writer
        self._flowing = flowing
        self._kinds: set[bytes] = set()

    async def run(self) -> None:
        """Until either end has gone; what the client sent before it went has arrived then."""
        tasks = [asyncio.ensure_future(self._statements()), asyncio.ensure_future(self._answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.abort()

    def abort(self) -> None:
        self._client_writer.transport.abort()
        self._server_writer.transport.abort()

    async def _statements(self) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await self._client_reader.readexactly(HEAD_BYTES)
                body = await self._client_reader.readexactly(int.from_bytes(head[:3], "little"))
                await self._flowing.wait()
                if head[3] == 0 and not await self._passes(body):
                    return
                self._server_writer.write(head + body)
                await self._server_writer.drain()

    async def _passes(self, body: bytes) -> bool:
        """Look at one statement; False to cut here."""
        self._proxy.statements += 1
        if self._proxy.delay_ms:
            await asyncio.sleep(self._proxy.delay_ms / 1000)
        if body[:1] != bytes([COM_QUERY]):
            return True
        if body[1:] == b"COMMIT":
            return await self._commit_passes(body)
        if body.startswith(b"BEGIN;", 1):
            self._kinds.clear()
        self._kinds |= {kind for kind in KINDS if kind in body}
        return True

    async def _commit_passes(self, body: bytes) -> bool:
        passed, cut = self._proxy.commit_passes(self._kinds)
        if passed and cut:
            # The server commits, and its answer finds nobody.
            self._client_writer.transport.abort()
            self._server_writer.write(len(body).to_bytes(3, "little") + b"\0" + body)
            await self._server_writer.drain()
        return not cut

    async def _answers(self) -> None:
        with suppress(OSError):
            while data := await self._server_reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                self._client_writer.write(data)
                await self._client_writer.drain()


@contextmanager
def proxied(dsn: Dsn) -> Iterator[tuple[Proxy, Dsn]]:
    """A proxy in front of one database, and the address through it."""
    with (
        tempfile.TemporaryDirectory(prefix="sz-") as folder,
        Proxy(Path(folder, "s"), Path(str(dsn.unix_socket))) as proxy,
    ):
        yield proxy, proxy.dsn(dsn)
