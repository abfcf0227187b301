"""The checks of a server at every start, given or found: its version, its settings, its clock."""

from __future__ import annotations

from dataclasses import dataclass

from engine.clock import Clock
from engine.config import Dsn
from engine.errors import OperatorError, StoreUnavailable
from engine.rules.server import ServerFacts, server_problems, version_problem
from engine.store.connection import Connection

_IDLE_S = 60


@dataclass(frozen=True, slots=True)
class Server:
    """A server that will do. `offset_ms` is its clock minus ours, as well as half a round trip tells."""

    version: str
    offset_ms: int


async def check_server(dsn: Dsn, clock: Clock) -> Server:
    """Raises OperatorError with one line for each thing that is wrong, also where the server cannot be reached."""
    try:
        version = await _version(dsn)
        connection = await Connection.open(dsn, _IDLE_S)
        try:
            await _check_facts(dsn, connection)
            return Server(version, await _offset_ms(connection, clock))
        finally:
            await connection.close()
    except StoreUnavailable as error:
        raise OperatorError(str(error)) from error


async def _version(dsn: Dsn) -> str:
    """Asked before the session is set up, for which other servers have no words."""
    connection = await Connection.open_bare(dsn)
    try:
        version = str((await connection.execute("server_version")).rows[0][0])
    finally:
        await connection.close()
    problem = version_problem(version)
    if problem:
        raise OperatorError(f"{dsn}: {problem}")
    return version


async def _check_facts(dsn: Dsn, connection: Connection) -> None:
    facts = ServerFacts(*(await connection.execute("server_facts")).rows[0])
    problems = server_problems(facts)
    if problems:
        raise OperatorError("\n".join(f"{dsn}: {problem}" for problem in problems))


async def _offset_ms(connection: Connection, clock: Clock) -> int:
    asked_ms = clock.now_ms()
    server_ms = int((await connection.execute("shard_now")).rows[0][0])
    return server_ms - (asked_ms + clock.now_ms()) // 2
