"""The receiver's memory: which attempt of a run is under way, which was the highest, and what a finished one answered.

One row for each idempotency key, in SQLite or any DB-API database. Every change is one statement that names what it
expects to find, so that processes and hosts that share the database need no lock, and none of them has to be alive:

    nobody → held by an attempt → finished, with its answer          an attempt of a finished run gets that answer
                                → failed, with its answer            only a higher attempt is let through
                                → silent for 15 s: its process died  the next attempt takes over

While it works the holder says so every 5 s from a thread of its own. Hosts that share a fence need clocks that agree
to a few seconds.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEASE_MS = 15_000
RENEWAL_S = 5.0
# A dead letter can be retried for 14 days, with the same key.
KEEP_MS = 30 * 86_400_000
FORGET_EVERY_MS = 3_600_000
FORGET_ROWS = 1_000
IDLE_CONNECTIONS_MAX = 8
# Each further turn means that somebody else changed the row in between.
TURNS_MAX = 20

_CREATE = """CREATE TABLE IF NOT EXISTS secondzero_attempts (
    run_key VARCHAR(255) NOT NULL PRIMARY KEY,
    highest_attempt BIGINT NOT NULL,
    ran_attempt BIGINT NOT NULL,
    holder VARCHAR(32) NOT NULL,
    held_until_ms BIGINT NOT NULL,
    finished SMALLINT NOT NULL,
    answer TEXT,
    touched_ms BIGINT NOT NULL,
    UNIQUE (touched_ms, run_key)
)"""
_READ = """SELECT highest_attempt, ran_attempt, holder, held_until_ms, finished, answer
    FROM secondzero_attempts WHERE run_key = ?"""
_FIRST = """INSERT INTO secondzero_attempts
    (run_key, highest_attempt, ran_attempt, holder, held_until_ms, finished, answer, touched_ms)
    VALUES (?, ?, ?, ?, ?, 0, NULL, ?)"""
_TAKE = """UPDATE secondzero_attempts
    SET highest_attempt = ?, ran_attempt = ?, holder = ?, held_until_ms = ?, answer = NULL, touched_ms = ?
    WHERE run_key = ? AND finished = 0 AND highest_attempt = ? AND holder = ? AND held_until_ms = ?"""
_NOTE = """UPDATE secondzero_attempts SET highest_attempt = ?
    WHERE run_key = ? AND finished = 0 AND highest_attempt < ?"""
_RENEW = "UPDATE secondzero_attempts SET held_until_ms = ? WHERE run_key = ? AND holder = ?"
_LEAVE = """UPDATE secondzero_attempts SET holder = '', held_until_ms = 0, finished = ?, answer = ?, touched_ms = ?
    WHERE run_key = ? AND holder = ?"""
_OLD = "SELECT run_key FROM secondzero_attempts WHERE touched_ms < ? AND held_until_ms < ?"
_FORGET = "DELETE FROM secondzero_attempts WHERE run_key = ? AND touched_ms < ?"

# PEP 249; a statement here has no other question mark.
_MARKS: dict[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",
    "numeric": lambda number: f":{number}",
}

_log = logging.getLogger("secondzero.receiver")


class Entered(NamedTuple):
    """This attempt is let through; ``holder`` names it to ``leave``."""

    key: str
    holder: str


class Remembered(NamedTuple):
    """What this run, or this very attempt, answered before."""

    answer: str


class Busy(NamedTuple):
    """Another attempt is under way, or was a moment ago; it is worth asking again after so long."""

    for_ms: int


class Stale(NamedTuple):
    """A higher attempt has been here."""

    highest_attempt: int


class Fence:
    """The memory in a DB-API database. Threads and forked processes may share one.

    ``connect`` opens a connection of that database, ``paramstyle`` is what its module says. The table is made if it is
    not there, unless ``create`` is False. ``clock`` tells seconds since the epoch.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        paramstyle: str = "qmark",
        *,
        create: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if paramstyle not in _MARKS:
            raise ValueError(f"paramstyle must be one of {', '.join(_MARKS)}, not {paramstyle!r}")
        self._database = _Database(connect, paramstyle, _CREATE if create else None)
        self._clock = clock
        self._held: dict[str, str] = {}
        self._keeper_pid = 0
        self._stop_keeping = threading.Event()
        self._keeper_lock = threading.Lock()

    def enter(self, key: str, attempt: int) -> Entered | Remembered | Busy | Stale:
        """Ask to carry out an attempt."""
        holder, missed = "", None
        for _ in range(TURNS_MAX):
            rows = self._database.rows(_READ, (key,))
            if rows and rows[0][4]:  # finished: the repeats, which are most
                return Remembered(rows[0][5])
            now_ms, holder = self._now_ms(), holder or secrets.token_hex(16)
            if rows:
                verdict = self._judge(key, attempt, holder, rows[0], now_ms)
            elif missed is None:
                verdict, missed = self._first(key, attempt, holder, now_ms)
            else:
                raise missed
            if isinstance(verdict, Entered):
                self._keep(verdict)
            if verdict is not None:
                return verdict
        return Busy(1_000)

    def leave(self, entered: Entered, answer: str | None, *, finished: bool) -> bool:
        """The attempt has ended; False if another one has taken over meanwhile. Then nothing is remembered of it.

        ``answer`` None: it may be carried out again.
        """
        self._held.pop(entered.holder, None)
        values = (int(finished), answer, self._now_ms(), entered.key, entered.holder)
        return self._database.change(_LEAVE, values) == 1

    def renew(self) -> None:
        """Say of everything that is under way here that it is."""
        for holder, key in list(self._held.items()):
            self._database.change(_RENEW, (self._now_ms() + LEASE_MS, key, holder))

    def forget(self) -> int:
        """Forget what was last touched 30 days ago; returns how many runs. At most 1,000 a call."""
        now_ms = self._now_ms()
        old = self._database.rows(_OLD, (now_ms - KEEP_MS, now_ms), rows_max=FORGET_ROWS)
        return sum(self._database.change(_FORGET, (key, now_ms - KEEP_MS)) for (key,) in old)

    def close(self) -> None:
        """Close what is idle. A fence that is used again opens again."""
        self._stop_keeping.set()
        self._keeper_pid = 0
        self._database.close()

    def _judge(
        self, key: str, attempt: int, holder: str, row: Sequence[Any], now_ms: int
    ) -> Entered | Remembered | Busy | Stale | None:
        """What this row says; None if it has changed since it was read."""
        highest, ran, held_by, until_ms, _, answer = row
        if held_by == holder:  # our own change, whose commit was not answered
            return Entered(key, holder)
        if attempt < highest:
            return Stale(highest)
        if held_by and until_ms > now_ms:
            if attempt > highest:
                self._database.change(_NOTE, (attempt, key, attempt))
            return Busy(until_ms - now_ms)
        if attempt == ran and answer is not None:
            return Remembered(answer)
        taken = (attempt, attempt, holder, now_ms + LEASE_MS, now_ms)
        changed = self._database.change(_TAKE, (*taken, key, highest, held_by, until_ms))
        return Entered(key, holder) if changed == 1 else None

    def _first(self, key: str, attempt: int, holder: str, now_ms: int) -> tuple[Entered | None, Exception | None]:
        """Nobody was here yet. The error is that of a row that is there by now, or one to be told."""
        try:
            self._database.insert(_FIRST, (key, attempt, attempt, holder, now_ms + LEASE_MS, now_ms))
        except Exception as error:  # every module has an IntegrityError of its own
            return None, error
        return Entered(key, holder), None

    def _keep(self, entered: Entered) -> None:
        if self._keeper_pid != os.getpid():
            with self._keeper_lock:
                if self._keeper_pid != os.getpid():
                    self._start_keeping()
        self._held[entered.holder] = entered.key

    def _start_keeping(self) -> None:
        """What a parent process holds is the parent's to renew."""
        self._held, self._stop_keeping = {}, threading.Event()
        keeper = threading.Thread(
            target=self._keep_all, args=(self._stop_keeping,), name="secondzero-fence", daemon=True
        )
        keeper.start()
        self._keeper_pid = os.getpid()

    def _keep_all(self, stop: threading.Event) -> None:
        """The thread that renews, and forgets now and then."""
        forgot_ms = 0
        while not stop.wait(RENEWAL_S):
            try:
                self.renew()
                if self._now_ms() - forgot_ms > FORGET_EVERY_MS:
                    forgot_ms = self._now_ms()
                    self.forget()
            except Exception:
                _log.exception("the fence's database does not answer; what is under way may be taken for dead")

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def sqlite_fence(path: str | Path, *, clock: Callable[[], float] = time.time) -> Fence:
    """The memory in one file of this host, for all its processes."""

    def connect() -> sqlite3.Connection:
        # Each statement is a transaction of its own; whoever finds the file locked waits.
        connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    return Fence(connect, "qmark", clock=clock)


class _Database:
    """Single statements, each a transaction, on connections that are kept."""

    def __init__(self, connect: Callable[[], Any], paramstyle: str, create: str | None) -> None:
        self._connect = connect
        self._create = create
        self._written: dict[str, str] = {}
        self._mark = _MARKS[paramstyle]
        self._pid = 0
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue(IDLE_CONNECTIONS_MAX)
        self._left: list[queue.LifoQueue[Any]] = []

    def rows(self, statement: str, values: Sequence[Any], rows_max: int = 1) -> list[Sequence[Any]]:
        return self._twice(statement, values, lambda cursor: cursor.fetchmany(rows_max))  # type: ignore[no-any-return]

    def change(self, statement: str, values: Sequence[Any]) -> int:
        """How many rows it changed."""
        return self._twice(statement, values, lambda cursor: cursor.rowcount)  # type: ignore[no-any-return]

    def insert(self, statement: str, values: Sequence[Any]) -> None:
        """Once: who repeats it finds the row."""
        self._run(self._borrow(), statement, values, lambda cursor: None)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _twice(self, statement: str, values: Sequence[Any], read: Callable[[Any], Any]) -> Any:
        """Again on a new connection: an idle one may have been closed by the server."""
        try:
            return self._run(self._borrow(), statement, values, read)
        except Exception:
            return self._run(self._open(), statement, values, read)

    def _run(self, connection: Any, statement: str, values: Sequence[Any], read: Callable[[Any], Any]) -> Any:
        try:
            cursor = connection.cursor()
            cursor.execute(self._written.get(statement) or self._write(statement), values)
            result = read(cursor)
            cursor.close()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        try:
            self._idle.put_nowait(connection)
        except queue.Full:
            connection.close()
        return result

    def _borrow(self) -> Any:
        if self._pid != os.getpid():
            # A parent's connections are not ours to use, nor to close.
            self._left.append(self._idle)
            self._idle, self._pid = queue.LifoQueue(IDLE_CONNECTIONS_MAX), os.getpid()
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._open()

    def _open(self) -> Any:
        connection = self._connect()
        if self._create is not None:
            connection.cursor().execute(self._create)
            connection.commit()
            self._create = None
        return connection

    def _write(self, statement: str) -> str:
        first, *rest = statement.split("?")
        marked = first + "".join(self._mark(number) + part for number, part in enumerate(rest, 1))
        self._written[statement] = marked
        return marked
