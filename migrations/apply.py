"""Brings a shard's database to the schema of this release: the numbered files beside this module, in order, once each.

MySQL commits around every DDL statement, so a file cannot be one transaction. Instead each statement is noted as
started before it runs and as done after it; one that changes rows shares a transaction with the latter note. A
migration that was killed goes on at the first statement not done: if that one is DDL and had been started it may have
run already, and then "it is there already" counts as done.

A file holds statements ended by `;` at a line's end. A first line `-- only: first` keeps it to the first shard. Once
applied, a file never changes: a later file changes what it made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from asyncmy.errors import MySQLError

from engine.config import Dsn
from engine.errors import Conflict, OperatorError, StoreUnavailable
from engine.settings import SettingsError
from engine.store import statements
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import Value

FOLDER = Path(__file__).parent

# Another migrator of the same database gets this long to finish; then the operator shall look.
LOCK_S = 60
# An ALTER of a large table rewrites it.
STATEMENT_MS_MAX = 6 * 3_600_000
# The session holds the lock, so it must outlive the pauses between statements, whatever the server's default is.
SESSION_IDLE_S_MAX = 3_600

# On a fleet at work: a statement that meets a long transaction tries for about a minute to get in between.
CONFLICT_TRIES_MAX = 20
CONFLICT_PAUSE_S = 1.0

# Table, column, key, key to drop, table to drop, partition, column to change: there (or gone) already.
_ALREADY_SO = frozenset({1050, 1060, 1061, 1091, 1051, 1517, 1054})


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. `pieces` are its statements, each with the comments before it; joined they are the file."""

    number: int
    name: str
    only_first: bool
    pieces: tuple[str, ...]

    def checksum(self, done: int) -> bytes:
        return sha256("".join(self.pieces[:done]).encode()).digest()


@dataclass(frozen=True, slots=True)
class Applied:
    """What the database says about one file."""

    name: str
    checksum: bytes
    started: int
    done: int


async def apply(dsn: Dsn, *, first: bool, folder: Path = FOLDER) -> list[str]:
    """Apply what is missing to one shard and return the names of those files; makes the database if it is not there.

    Raises OperatorError in one line where the database is newer than this release or a file was changed since.
    """
    files = [migration for migration in read_folder(folder) if first or not migration.only_first]
    try:
        await _make_database(dsn)
        connection = await Connection.open(dsn, SESSION_IDLE_S_MAX)
        try:
            await _lock(connection, dsn)
            await connection.execute("create_migrations")
            applied = await _applied(connection)
            _check(dsn, read_folder(folder), applied)
            return [file.name for file in files if await _apply_file(connection, file, applied.get(file.number))]
        finally:
            await connection.close()
    except (StoreUnavailable, Conflict, MySQLError) as error:
        raise OperatorError(f"cannot migrate {dsn}: {error}") from error


async def check_applied(shard: Shard) -> None:
    """SettingsError in one line where a shard that holds a fleet has not the schema of this release: nothing that runs
    on it could go on."""
    there = {row[0]: row[4] for row in (await shard.execute("migrations")).rows}
    files = [file for file in read_folder(FOLDER) if shard.index == 0 or not file.only_first]
    missing = [file.name for file in files if there.get(file.number, 0) < len(file.pieces)]
    if missing:
        raise SettingsError(
            [
                f"{shard.dsn}: its schema is that of an older release ({missing[0]} has not been applied): stop what"
                " runs on it and run: secondzero migrate --shard …"
            ]
        )
    if max(there, default=0) > files[-1].number:
        raise SettingsError([f"{shard.dsn}: its schema is that of a newer release: upgrade secondzero to it"])


def read_folder(folder: Path) -> list[Migration]:
    """The migrations of a folder by number; a number twice is a mistake of the release. One may be missing: numbers are
    given to changes that are made side by side, and each file is noted for itself."""
    files = [_read(path) for path in sorted(folder.glob("[0-9]*_*.sql"))]
    numbers = [file.number for file in files]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{folder}: the numbers of the migrations are {numbers}, one of them twice")
    return files


def _read(path: Path) -> Migration:
    text = path.read_text()
    *pieces, rest = re.split(r"(?<=;\n)", text)
    if pieces:
        pieces[-1] += rest
    only_first = text.startswith("-- only: first\n")
    return Migration(int(path.name.partition("_")[0]), path.name, only_first, tuple(pieces))


async def _make_database(dsn: Dsn) -> None:
    """Only where it is missing: elsewhere the account may well lack the right to make one."""
    connection = await Connection.open(replace(dsn, database=""), SESSION_IDLE_S_MAX)
    try:
        answer = await connection.execute("database_exists", {"database": dsn.database})
        if answer.rows[0][0] == 0:
            await connection.run(named("create_database", dsn.database))
    finally:
        await connection.close()


def named(statement: str, name: str) -> bytes:
    """The statement with its placeholder `name` replaced by the name of a database or table."""
    return statements.bind(statement, {}).replace(b"`name`", b"`" + name.replace("`", "``").encode() + b"`")


async def _lock(connection: Connection, dsn: Dsn) -> None:
    answer = await connection.execute("lock_migrations", {"seconds": LOCK_S}, timeout_ms=(LOCK_S + 5) * 1000)
    if answer.rows[0][0] != 1:
        raise OperatorError(f"another migration of {dsn} has been running for {LOCK_S} s: wait for it or end it")


async def _applied(connection: Connection) -> dict[int, Applied]:
    answer = await connection.execute("migrations")
    return {number: Applied(name, checksum, started, done) for number, name, checksum, started, done in answer.rows}


def _check(dsn: Dsn, files: Sequence[Migration], applied: Mapping[int, Applied]) -> None:
    """Refuse, before anything is changed, what this release cannot go on from."""
    known = {file.number: file for file in files}
    for number, there in applied.items():
        if number not in known:
            raise OperatorError(f"{dsn} has the schema of a newer release ({there.name}): upgrade secondzero to it")
        if known[number].checksum(there.done) != there.checksum:
            raise OperatorError(
                f"migrations/{known[number].name} was changed after it was applied to {dsn} (as {there.name}): "
                "restore it and put the change into a new file"
            )


async def _apply_file(connection: Connection, file: Migration, there: Applied | None) -> bool:
    """Run the statements not yet done; False if there were none."""
    first, started = (there.done, there.started) if there else (0, 0)
    for at in range(first, len(file.pieces)):
        await _note(connection, file, at + 1, at)
        await _apply_statement(connection, file, at, may_have_run=at < started)
    return first < len(file.pieces)


async def _apply_statement(connection: Connection, file: Migration, at: int, *, may_have_run: bool) -> None:
    """Again after a lock wait: a session gives up early, since all that comes to a table queues behind waiting DDL."""
    for tries_left in reversed(range(CONFLICT_TRIES_MAX)):
        try:
            connection.begin()
            await _run(connection, file.pieces[at], may_have_run=may_have_run)
            await _note(connection, file, at + 1, at + 1)
            await connection.commit()
        except Conflict:
            await connection.rollback()
            if not tries_left:
                raise
            await asyncio.sleep(CONFLICT_PAUSE_S)
        else:
            return


async def _note(connection: Connection, file: Migration, started: int, done: int) -> None:
    values: dict[str, Value] = {"number": file.number, "name": file.name, "started": started, "done": done}
    values["checksum"] = file.checksum(done)
    await connection.execute("note_statement", values)


async def _run(connection: Connection, text: str, *, may_have_run: bool) -> None:
    try:
        await connection.run(text.encode(), STATEMENT_MS_MAX)
    except MySQLError as error:
        if not (may_have_run and error.args[0] in _ALREADY_SO):
            raise
