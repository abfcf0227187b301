"""The memory of a receiver, in SQLite and in MySQL: one attempt at a time, the highest known, finished is finished."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from engine.local.mysqld import MysqlServer
from secondzero_client.fence import KEEP_MS, LEASE_MS, Busy, Entered, Fence, Remembered, Stale, sqlite_fence
from tests.support.mysql import query

START_MS = 1_900_000_000_000
THREADS, KEYS, ATTEMPTS = 6, 6, 5


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> float:
        return self.now_ms / 1000


Make = Callable[[Clock], Fence]


@pytest.fixture(params=["sqlite", "sqlite by DB-API", "MySQL"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens a further fence on the same memory."""
    opened: list[Fence] = []
    for make in _memories(request, tmp_path / "attempts.db"):
        yield lambda clock, make=make: opened.append(make(clock)) or opened[-1]
        for fence in opened:
            fence.close()


def _memories(request: pytest.FixtureRequest, path: Path) -> Iterator[Make]:
    if request.param == "sqlite":
        yield lambda clock: sqlite_fence(path, clock=clock)
    elif request.param == "MySQL":
        yield from mysql(request.getfixturevalue("mysql_server"))
    else:
        # Transactions as the module opens them by itself, and numbered marks.
        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(path, timeout=10, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            return connection

        yield lambda clock: Fence(connect, "numeric", clock=clock)


def mysql(server: MysqlServer) -> Iterator[Make]:
    def connect(database: str | None = "receiver") -> pymysql.Connection:
        return pymysql.connect(unix_socket=server.dsn("").unix_socket, user="root", database=database)

    with connect(None) as root:
        root.cursor().execute("CREATE DATABASE receiver")
    yield lambda clock: Fence(connect, pymysql.paramstyle, clock=clock)
    with connect(None) as root:
        root.cursor().execute("DROP DATABASE receiver")


def test_p3_a_finished_run_is_answered_from_memory_whatever_attempt_asks(make: Make) -> None:
    clock = Clock()
    fence = make(clock)
    entered = fence.enter("run_1", 2)
    assert isinstance(entered, Entered)
    assert fence.leave(entered, "the answer", finished=True)
    clock.now_ms += LEASE_MS * 2
    assert [make(clock).enter("run_1", attempt) for attempt in (1, 2, 3)] == [Remembered("the answer")] * 3
    assert isinstance(fence.enter("run_2", 1), Entered)


def test_p3_no_attempt_gets_in_while_one_is_under_way(make: Make) -> None:
    clock = Clock()
    fence, other = make(clock), make(clock)
    entered = fence.enter("run_1", 1)
    assert [other.enter("run_1", attempt) for attempt in (1, 2)] == [Busy(LEASE_MS)] * 2
    clock.now_ms += LEASE_MS - 1
    fence.renew()
    assert other.enter("run_1", 3) == Busy(LEASE_MS)
    assert fence.leave(entered, "late but whole", finished=True)
    assert other.enter("run_1", 4) == Remembered("late but whole")


def test_p3_a_lower_attempt_than_one_that_was_here_is_stale(make: Make) -> None:
    fence = make(Clock())
    entered = fence.enter("run_1", 1)
    assert fence.enter("run_1", 5) == Busy(LEASE_MS)
    assert fence.leave(entered, "503", finished=False)
    assert [fence.enter("run_1", attempt) for attempt in (1, 4)] == [Stale(5)] * 2
    assert isinstance(fence.enter("run_1", 5), Entered)


def test_p3_a_failed_attempt_is_not_carried_out_again_but_the_next_one_is(make: Make) -> None:
    fence = make(Clock())
    assert fence.leave(fence.enter("run_1", 1), "503", finished=False)
    assert fence.enter("run_1", 1) == Remembered("503")
    entered = fence.enter("run_1", 2)
    assert fence.leave(entered, None, finished=False)
    assert isinstance(fence.enter("run_1", 2), Entered)


def test_p3_one_that_wakes_up_late_finds_another_in_its_place(make: Make) -> None:
    clock = Clock()
    paused, other = make(clock), make(clock)
    first = paused.enter("run_1", 1)
    clock.now_ms += LEASE_MS
    second = other.enter("run_1", 2)
    assert isinstance(second, Entered)
    paused.renew()
    assert not paused.leave(first, "from the past", finished=True)
    assert other.enter("run_1", 3) == Busy(LEASE_MS)
    assert other.leave(second, "now", finished=True)
    assert paused.enter("run_1", 3) == Remembered("now")


def test_p3_of_many_threads_with_many_attempts_each_run_is_done_once(make: Make) -> None:
    fences = [make(Clock()) for _ in range(2)]
    under_way: Counter[str] = Counter()
    done: Counter[str] = Counter()
    together: list[str] = []

    def deliver(seed: int) -> None:
        dice, fence = random.Random(seed), fences[seed % 2]
        calls = [(f"run_{key}", attempt) for key in range(KEYS) for attempt in range(1, ATTEMPTS)]
        for key, attempt in dice.sample(calls, len(calls)):
            entered = fence.enter(key, attempt)
            if isinstance(entered, Entered):
                under_way[key] += 1
                together.extend([key] * (under_way[key] > 1))
                finished = dice.random() < 0.5
                done[key] += finished
                under_way[key] -= 1
                assert fence.leave(entered, "done", finished=finished)

    threads = [threading.Thread(target=deliver, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == []
    assert max(done.values()) == 1
    assert len(done) > 0


def test_a_run_is_forgotten_when_no_attempt_of_it_can_come(make: Make) -> None:
    clock = Clock()
    fence = make(clock)
    fence.leave(fence.enter("old", 1), "done", finished=True)
    clock.now_ms += KEEP_MS
    held = fence.enter("held", 1)
    fence.leave(fence.enter("new", 1), "done", finished=True)
    assert fence.forget() == 0
    clock.now_ms += 1
    assert fence.forget() == 1
    assert isinstance(fence.enter("old", 1), Entered)
    assert fence.enter("new", 1) == Remembered("done")
    assert fence.leave(held, "done", finished=True)


def test_a_connection_that_the_server_closed_is_opened_again(mysql_server: MysqlServer) -> None:
    for make in mysql(mysql_server):
        fence = make(Clock())
        entered = fence.enter("run_1", 1)
        sessions = asyncio.run(
            query(mysql_server.dsn(""), "SELECT id FROM information_schema.processlist WHERE db = 'receiver'")
        )
        for (session,) in sessions:
            asyncio.run(query(mysql_server.dsn(""), f"KILL {session}"))
        assert len(sessions) == 1
        assert fence.leave(entered, "done", finished=True)
        assert fence.enter("run_1", 2) == Remembered("done")
        fence.close()


def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    fence = sqlite_fence(tmp_path / "no-folder" / "attempts.db")
    with pytest.raises(sqlite3.OperationalError):
        fence.enter("run_1", 1)


FORKED = """
import os, sys
from secondzero_client.fence import Entered, sqlite_fence
fence = sqlite_fence(sys.argv[1])
entered = fence.enter("before", 1)
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        mine = [key for key in range(50) if isinstance(taken := fence.enter(f"run_{key}", 1), Entered)
                and fence.leave(taken, str(key), finished=True)]
        print(*mine, flush=True)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
assert fence.leave(entered, "done", finished=True)
"""


def test_p3_of_forked_processes_one_does_each_run(tmp_path: Path) -> None:
    path = str(tmp_path / "attempts.db")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, path], capture_output=True, text=True, check=True, timeout=60
    )
    assert sorted(map(int, run.stdout.split())) == list(range(50))
    assert sqlite_fence(path).enter("before", 2) == Remembered("done")
