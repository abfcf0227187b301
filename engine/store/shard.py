"""One shard: a bounded pool of connections, transactions with retries, and the server's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from engine.config import Dsn
from engine.errors import Conflict, PoolExhausted
from engine.events import Events
from engine.keys import NO_KEYS, Keys
from engine.store.connection import CALL_TIMEOUT_MS, Answer, Connection
from engine.store.statements import Value, bind

# A whole idempotent transaction that lost a race (1205, 1213, 3572) runs again at most this often.
CONFLICT_RETRIES_MAX = 5
CONFLICT_PAUSE_MS = 20

# Who finds every connection busy for this long is told so, instead of queueing without a bound.
POOL_WAIT_MS = 1_000

# Room for a batch beside the server's limit, whatever that is set to.
PACKET_BYTES_MAX = 16 << 20
PACKET_SLACK_BYTES = 4_096

T = TypeVar("T")


class Shard:
    """A MySQL server of the fleet, number ``index``. Connections are made when first needed."""

    def __init__(
        self,
        dsn: Dsn,
        index: int,
        *,
        connections_max: int = 4,
        wait_timeout_s: int = 10,
        pool_wait_ms: int = POOL_WAIT_MS,
        events: Events | None = None,
        keys: Keys = NO_KEYS,
    ) -> None:
        """``events`` are told how long each named statement took; ``keys`` seal and open the secrets in it."""
        self.dsn = dsn
        self.index = index
        self.keys = keys
        self.packet_bytes_max = PACKET_BYTES_MAX
        self._wait_timeout_s = wait_timeout_s
        self._pool_wait_ms = pool_wait_ms
        self._events = events
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(connections_max)
        self._asked_packet = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection from the pool, for one caller; returned only if its last call ended well."""
        await self._take_slot()
        try:
            connection = await self._usable_connection()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """BEGIN, then COMMIT if the block ends well, else ROLLBACK. Within it one connection is used."""
        async with self.connection() as connection:
            connection.begin()
            try:
                yield connection
            except BaseException:
                await asyncio.shield(connection.rollback())
                raise
            await connection.commit()

    async def retrying(self, transaction: Callable[[], Awaitable[T]]) -> T:
        """Run a whole idempotent transaction, again after a lost race, at most CONFLICT_RETRIES_MAX times."""
        for attempt in range(CONFLICT_RETRIES_MAX):
            try:
                return await transaction()
            except Conflict:
                await asyncio.sleep(CONFLICT_PAUSE_MS * (1 << attempt) / 1000)
        return await transaction()

    async def execute(
        self, name: str, values: Mapping[str, Value] | None = None, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Answer:
        """One named statement outside a transaction."""
        async with self.connection() as connection:
            return await connection.execute(name, values, timeout_ms)

    async def ask(self, *questions: tuple[str, Mapping[str, Value]]) -> list[Answer]:
        """Several named statements in one round trip."""
        async with self.connection() as connection:
            name = "+".join(name for name, _ in questions)
            return await connection.run_all([bind(name, values) for name, values in questions], name=name)

    async def now_ms(self) -> int:
        """The shard's time, milliseconds since the epoch: what leases and changes are judged by."""
        answer = await self.execute("shard_now")
        return int(answer.rows[0][0])

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _take_slot(self) -> None:
        try:
            async with asyncio.timeout(self._pool_wait_ms / 1000):
                await self._free.acquire()
        except TimeoutError as error:
            raise PoolExhausted(f"{self.dsn}: every connection was busy for {self._pool_wait_ms} ms") from error

    async def _usable_connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and not connection.lost:
                return connection
            connection.abort()  # the server closes idle sessions after wait_timeout
        return await self._open()

    async def _open(self) -> Connection:
        connection = await Connection.open(self.dsn, self._wait_timeout_s)
        if not self._asked_packet:
            answer = await connection.execute("max_allowed_packet")
            self.packet_bytes_max = min(PACKET_BYTES_MAX, int(answer.rows[0][0])) - PACKET_SLACK_BYTES
            self._asked_packet = True
        connection.keys = self.keys
        if self._events:
            connection.on_statement = self._told
        return connection

    def _told(self, name: str, us: int) -> None:
        if self._events:
            self._events.emit("statement.ended", statement=name, us=us, shard=self.index)

    def _give_back(self, connection: Connection) -> None:
        if connection.usable and not connection.in_transaction:
            self._idle.append(connection)
        else:
            connection.abort()
