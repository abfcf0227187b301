"""Real MySQL for the tests: one server for the session, and a pool of migrated schemas that are handed out clean.

The server has the product's settings, default durability included; only its folder is in memory where there is room.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncmy.errors import MySQLError

from engine.config import Dsn
from engine.local.mysqld import MIB, MysqlServer
from engine.store.connection import Connection, Row
from migrations.apply import apply

MEMORY_FOLDER = Path("/dev/shm")
# Beyond the 300 MB of the server itself: room for tables, binlog and other sessions at the same time.
ROOM_BYTES = 2048 * MIB
FOLDER_PREFIX = "secondzero-tests-"
SESSION_IDLE_S = 60


@contextmanager
def running_server(name: str = "server", **settings: object) -> Iterator[MysqlServer]:
    """A server of its own in a folder that is gone afterwards; small, as several test runs share a machine."""
    with server_folder() as folder:
        sizes = {"buffer_pool_bytes": 128 * MIB, "redo_log_bytes": 100 * MIB}
        server = MysqlServer(folder / name, **(sizes | settings), say=lambda line: None)
        try:
            server.start()
            yield server
        finally:
            server.stop(0)  # by force: an orderly stop takes a second longer, and nothing is kept


@contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder, in memory if that has room; also removes what killed test runs have left there."""
    in_memory = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free > ROOM_BYTES
    parent = MEMORY_FOLDER if in_memory else Path(tempfile.gettempdir())
    for left in parent.glob(f"{FOLDER_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(FOLDER_PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


class SchemaPool:
    """Migrated schemas of one server. What a test leaves behind is cleared when the schema is next handed out."""

    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        self._free: dict[bool, list[str]] = {True: [], False: []}
        self._fresh_partitions: dict[bool, set[Row]] = {}
        self._made = 0

    @contextmanager
    def schema(self, *, first: bool = True) -> Iterator[Dsn]:
        """A clean schema of a first shard, or of another."""
        name = self._free[first].pop() if self._free[first] else asyncio.run(self._make(first))
        asyncio.run(self._clean(name, first))
        yield self._server.dsn(name)
        self._free[first].append(name)

    async def _make(self, first: bool) -> str:
        self._made += 1
        name = f"shard_{self._made}"
        await self._migrate(name, first)
        return name

    async def _migrate(self, name: str, first: bool) -> None:
        await apply(self._server.dsn(name), first=first)
        if first not in self._fresh_partitions:
            self._fresh_partitions[first] = set(await self._partitions(name))

    async def _clean(self, name: str, first: bool) -> None:
        await self._end_sessions(name)
        there = set(await self._partitions(name))
        fresh = self._fresh_partitions[first]
        if fresh - there:
            await self._query("", f"DROP DATABASE {name}")
            await self._migrate(name, first)
            return
        for table, partition, _ in there - fresh:
            await self._query(name, f"ALTER TABLE {table} DROP PARTITION {partition}")
        tables = sorted({table for table, *_ in fresh} - {"migrations"})
        filled = " UNION ALL ".join(
            f"SELECT '{table}' FROM DUAL WHERE EXISTS (SELECT 1 FROM {table})" for table in tables
        )
        for (table,) in await self._query(name, filled):
            await self._query(name, f"DELETE FROM {table}")

    async def _end_sessions(self, name: str) -> None:
        """A test's forgotten transaction would hold the next one's locks."""
        for (session,) in await self._query("", f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            with suppress(MySQLError):  # it has ended by itself meanwhile
                await self._query("", f"KILL {session}")

    async def _partitions(self, name: str) -> list[Row]:
        """Also how far each reaches: the lowest one of a table grows."""
        columns = "table_name, partition_name, partition_description"
        text = f"SELECT {columns} FROM information_schema.partitions WHERE table_schema = '{name}'"
        return list(await self._query("", text))

    async def _query(self, database: str, text: str) -> list[Row]:
        return await query(self._server.dsn(database), text)


async def query(dsn: Dsn, text: str) -> list[Row]:
    """One statement on a connection of its own."""
    connection = await Connection.open(dsn, SESSION_IDLE_S)
    try:
        return list((await connection.run(text.encode())).rows)
    finally:
        await connection.close()
