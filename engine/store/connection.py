"""One MySQL connection: every call has a time-out, and a connection whose call did not end well is closed.

A call that was cancelled, timed out or failed may leave half an answer behind, which would be the next caller's. So
anything but a complete answer (a row set, a count, or an error the server sent) aborts the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import asyncmy
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError

from engine.clock import perf_ns
from engine.config import Dsn
from engine.errors import CommitUnknown, Conflict, StoreUnavailable
from engine.keys import NO_KEYS
from engine.store import statements
from engine.store.statements import Value
from engine.trust import refused_certificate, trusting

# Every statement must answer in this time; a black-holed server must not hold a stage for longer.
CALL_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5

# Strict mode and time zone are the session's own. Rows wait for a lock at most 2 s: whoever waits longer runs again.
SESSION = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone='+00:00',"
    " transaction_isolation='READ-COMMITTED', innodb_lock_wait_timeout=2, lock_wait_timeout=3,"
    " wait_timeout={wait_timeout_s}"
)

_DEADLOCK, _LOCK_WAIT, _LOCK_NOWAIT, _DUPLICATE, _NO_PARTITION = 1213, 1205, 3572, 1062, 1526
# 3101: a group of servers has rolled the transaction back at its COMMIT.
_CONFLICTS = frozenset({_DEADLOCK, _LOCK_WAIT, _LOCK_NOWAIT, 3101})
# What passes by itself or by somebody who looks after the server, never by a change of ours.
_UNAVAILABLE = frozenset(
    {
        *(1053, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 3024, 3169, 4031),  # going down, cut off, killed, idle
        *(1290, 1792, 1836, 3032, 3100),  # read-only, offline
        *(3, 1021, 1026, 1030, 1114, 1180, 1598),  # disk or table full, cannot be written
        *(1037, 1038, 1040, 1041, 1135, 1203, 1226, 1637),  # out of memory, threads, connections
    }
)

Row = tuple[Any, ...]

OnStatement = Callable[[str, int], None]
"""Is told each named round trip that was answered, and its microseconds."""


class Duplicate(Exception):  # noqa: N818 - an answer: the key is taken
    """A unique key is already there (error 1062). The transaction stands; only the statement was undone."""


class MissingDay(Exception):  # noqa: N818 - an answer: the keeper has to make the day
    """No day of the table holds this time (error 1526)."""


class Part(NamedTuple):
    """One named statement of several that go in one round trip; ``rows`` where it takes a batch of them."""

    name: str
    values: Mapping[str, Value] = {}
    rows: Sequence[Sequence[object]] | None = None


class Answer(NamedTuple):
    """Rows of a query, or the number of rows a write found (not only those that it changed)."""

    rows: Sequence[Row]
    found: int


class Connection:
    """A session of one shard. Use through ``Shard``; one caller at a time."""

    def __init__(self, raw: asyncmy.Connection) -> None:
        self._raw = raw
        self.on_statement: OnStatement | None = None
        self.keys = NO_KEYS
        self.usable = True
        self.in_transaction = False
        self._begin_owed = False

    @classmethod
    async def open(cls, dsn: Dsn, wait_timeout_s: int, call_timeout_ms: int = CALL_TIMEOUT_MS) -> Connection:
        """A new session with our settings; StoreUnavailable if the server does not answer in time."""
        connection = await cls.open_bare(dsn)
        try:
            await connection.run(SESSION.format(wait_timeout_s=wait_timeout_s).encode(), call_timeout_ms)
        except BaseException:
            connection.abort()
            raise
        return connection

    @classmethod
    async def open_bare(cls, dsn: Dsn) -> Connection:
        """A new session as the server made it: for asking what kind of server it is, and nothing else."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                raw = await asyncmy.connect(
                    **_address(dsn),
                    user=dsn.user,
                    password=dsn.password,
                    db=dsn.database,
                    charset="utf8mb4",
                    autocommit=True,
                    client_flag=CLIENT.FOUND_ROWS,
                    connect_timeout=CONNECT_TIMEOUT_S,
                )
        except (MySQLError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"{dsn}: {_why_not(error)}") from error
        return cls(raw)

    async def execute(
        self, name: str, values: Mapping[str, Value] | None = None, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Answer:
        """Run one named statement."""
        return await self.run(statements.bind(name, values or {}), timeout_ms, name)

    async def execute_rows(
        self,
        name: str,
        rows: Sequence[Sequence[object]],
        values: Mapping[str, Value] | None = None,
        *,
        bytes_max: int,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> int:
        """Run one named statement for all rows, in as many batches as the bounds need; returns the rows found."""
        found = 0
        for text in statements.bind_rows(name, rows, values or {}, bytes_max):
            found += (await self.run(text, timeout_ms, name)).found
        return found

    async def fetch_rows(
        self,
        name: str,
        rows: Sequence[Sequence[object]],
        values: Mapping[str, Value] | None = None,
        *,
        bytes_max: int,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> list[Row]:
        """Run one named query for all rows, in as many batches as the bounds need; returns what it found."""
        fetched: list[Row] = []
        for text in statements.bind_rows(name, rows, values or {}, bytes_max):
            fetched.extend((await self.run(text, timeout_ms, name)).rows)
        return fetched

    async def run_parts(self, *parts: Part, bytes_max: int, timeout_ms: int = CALL_TIMEOUT_MS) -> list[Answer]:
        """Several named statements, each with its answer, in one round trip if they fit in a packet.

        What comes after a failed one is not run.
        """
        texts = [(place, text) for place, part in enumerate(parts) for text in _texts(part, bytes_max)]
        name = "+".join(part.name for part in parts)
        if sum(len(text) for _, text in texts) <= bytes_max:
            answers = await self.run_all([text for _, text in texts], timeout_ms, name)
        else:
            answers = [await self.run(text, timeout_ms, parts[place].name) for place, text in texts]
        of_part: list[list[Answer]] = [[] for _ in parts]
        for (place, _), answer in zip(texts, answers, strict=True):
            of_part[place].append(answer)
        return [_joined(of) for of in of_part]

    async def run(self, text: bytes, timeout_ms: int = CALL_TIMEOUT_MS, name: str = "") -> Answer:
        """Run prepared text; raises Duplicate, MissingDay, Conflict or StoreUnavailable by what the server said."""
        return (await self.run_all([text], timeout_ms, name))[0]

    async def run_all(self, texts: Sequence[bytes], timeout_ms: int = CALL_TIMEOUT_MS, name: str = "") -> list[Answer]:
        """Several statements in one round trip, each with its answer; what comes after a failed one is not run.

        How long a named round trip took is told to ``on_statement``.
        """
        begun_ns = perf_ns()
        if self._begin_owed:
            self._begin_owed = False
            answers = (await self._answers([b"BEGIN", *texts], timeout_ms))[1:]
        else:
            answers = await self._answers(texts, timeout_ms)
        if name and self.on_statement:
            self.on_statement(name, (perf_ns() - begun_ns) // 1000)
        return answers

    async def _answers(self, texts: Sequence[bytes], timeout_ms: int) -> list[Answer]:
        answers: list[Answer] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await self._raw.query(b";".join(texts))  # type: ignore[no-untyped-call]
                answers.append(Answer(self._raw._result.rows or (), found))  # type: ignore[attr-defined]
                while self._raw._result.has_next:  # type: ignore[attr-defined]
                    found = await self._raw.next_result()  # type: ignore[no-untyped-call]
                    answers.append(Answer(self._raw._result.rows or (), found))  # type: ignore[attr-defined]
            return answers
        except MySQLError as error:
            raise self._sorted(error) from error
        except (TimeoutError, OSError) as error:
            self.abort()
            raise StoreUnavailable(f"no answer in {timeout_ms} ms") from error
        except BaseException:
            self.abort()
            raise

    def begin(self) -> None:
        """BEGIN, which goes with the first statement: a round trip of its own is a tenth of a small transaction."""
        self._begin_owed = True
        self.in_transaction = True

    async def savepoint(self) -> None:
        await self.run(b"SAVEPOINT step")

    async def rollback_to_savepoint(self) -> None:
        await self.run(b"ROLLBACK TO SAVEPOINT step")

    async def commit(self) -> None:
        """COMMIT; CommitUnknown if there is no answer, or one that says neither yes nor no."""
        if self._nothing_begun():
            return
        try:
            await self.run(b"COMMIT", name="commit")
        except Conflict:
            raise
        except Exception as error:
            self.abort()
            raise CommitUnknown(str(error)) from error
        self.in_transaction = False

    async def rollback(self) -> None:
        """ROLLBACK, or close the connection, which is the same for the server."""
        if not self.usable or self._nothing_begun():
            return
        try:
            await self.run(b"ROLLBACK")
            self.in_transaction = False
        except StoreUnavailable:
            self.abort()

    def _nothing_begun(self) -> bool:
        """Whether the transaction ends before the server has heard of it."""
        if not self._begin_owed:
            return False
        self._begin_owed = self.in_transaction = False
        return True

    @property
    def lost(self) -> bool:
        """The server has closed its end."""
        return bool(self._raw._stream_broken)  # type: ignore[attr-defined]

    def abort(self) -> None:
        """Close the socket without a word; the server rolls back what was open."""
        self.usable = False
        self._raw.close()

    async def close(self) -> None:
        self.usable = False
        await self._raw.ensure_closed()

    def _sorted(self, error: MySQLError) -> Exception:
        """The server's errors by what the caller can do; a connection error closes the connection."""
        code = error.args[0] if error.args else 0
        if code in _CONFLICTS:
            return Conflict(str(error))
        if code == _DUPLICATE:
            return Duplicate(str(error))
        if code == _NO_PARTITION:
            return MissingDay(str(error))
        if code in _UNAVAILABLE or not isinstance(code, int) or (code >= 2000 and code < 3000) or code == 0:
            self.abort()
            return StoreUnavailable(str(error))
        return error


def _texts(part: Part, bytes_max: int) -> list[bytes]:
    if part.rows is None:
        return [statements.bind(part.name, part.values)]
    return statements.bind_rows(part.name, part.rows, part.values, bytes_max)


def _joined(answers: Sequence[Answer]) -> Answer:
    """Those to the batches of one statement as one."""
    if len(answers) == 1:
        return answers[0]
    return Answer([row for answer in answers for row in answer.rows], sum(answer.found for answer in answers))


def _address(dsn: Dsn) -> dict[str, Any]:
    if dsn.unix_socket:
        return {"unix_socket": dsn.unix_socket}
    return {"host": dsn.host, "port": dsn.port, "ssl": trusting(dsn.tls) if dsn.tls else None}


def _why_not(error: Exception) -> str:
    """Why there is no connection, in one line."""
    return refused_certificate(error) or str(error) or "no answer in time"
