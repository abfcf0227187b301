"""Migrations: in order, once, resumable after a kill anywhere, and never over what another release made."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import Dsn
from engine.errors import OperatorError
from engine.local.mysqld import MysqlServer
from engine.store import connection as connection_module
from engine.store.connection import Connection
from migrations import apply as module
from migrations.apply import apply, read_folder
from migrations.schema import migrated_schema
from tests.support.mysql import query
from tests.support.wait import until

ONE = "-- One.\nCREATE TABLE one (id INT PRIMARY KEY);\nCREATE TABLE two (id INT PRIMARY KEY);\n"
TWO = """\
ALTER TABLE one ADD COLUMN name VARCHAR(10), ADD KEY by_name (name);
INSERT INTO two VALUES (7);
UPDATE two SET id = id + 1;
"""
WAITING = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"


@pytest.fixture
def dsn(mysql_server: MysqlServer) -> Iterator[Dsn]:
    """A database that does not exist yet."""
    dsn = mysql_server.dsn("fresh")
    yield dsn
    asyncio.run(query(replace(dsn, database=""), "DROP DATABASE IF EXISTS fresh"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "0001_one.sql", ONE)
    write(tmp_path, "0002_two.sql", TWO)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def run(dsn: Dsn, folder: Path, first: bool = True) -> list[str]:
    return asyncio.run(apply(dsn, first=first, folder=folder))


def rows(dsn: Dsn, text: str) -> list[tuple[object, ...]]:
    return asyncio.run(query(dsn, text))


def test_every_file_is_applied_once_in_order(dsn: Dsn, folder: Path) -> None:
    assert run(dsn, folder) == ["0001_one.sql", "0002_two.sql"]
    assert run(dsn, folder) == []
    assert rows(dsn, "SELECT id FROM two") == [(8,)]
    write(folder, "0003_three.sql", "INSERT INTO two VALUES (9);\n")
    assert run(dsn, folder) == ["0003_three.sql"]
    assert rows(dsn, "SELECT id FROM two ORDER BY id") == [(8,), (9,)]


def test_files_for_the_first_shard_are_left_out_elsewhere(dsn: Dsn, folder: Path) -> None:
    write(folder, "0003_first.sql", "-- only: first\nCREATE TABLE tenants (id INT);\n")
    assert run(dsn, folder, first=False) == ["0001_one.sql", "0002_two.sql"]
    assert rows(dsn, "SHOW TABLES LIKE 'tenants'") == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the program runs after it."""


@pytest.mark.parametrize("fatal_call", range(1, 31))
def test_a_migration_killed_before_or_after_any_statement_goes_on(
    dsn: Dsn, folder: Path, fatal_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call to the server is once the last one, killed before it is sent or after it took effect."""
    for kill_after in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "run", killing_run(fatal_call, kill_after))
            try:
                run(dsn, folder)
            except Killed:
                pass
            else:
                assert fatal_call > 25, "the kill never came"
        run(dsn, folder)
        assert rows(dsn, "SELECT id FROM two") == [(8,)]
        assert rows(dsn, "SELECT COUNT(name) FROM one") == [(0,)]
        assert rows(dsn, "SELECT number, statements_started, statements_done FROM migrations") == [(1, 2, 2), (2, 3, 3)]
        rows(dsn, "DROP DATABASE fresh")


def killing_run(fatal_call: int, kill_after: bool):
    run_for_real, calls = Connection.run, 0

    async def run_or_die(self: Connection, text: bytes, *rest, **named):
        nonlocal calls
        calls += 1
        if calls == fatal_call and not kill_after:
            raise Killed
        answer = await run_for_real(self, text, *rest, **named)
        if calls == fatal_call:
            raise Killed
        return answer

    return run_or_die


def test_a_migrator_killed_by_the_system_leaves_what_the_next_one_finishes(dsn: Dsn, folder: Path) -> None:
    write(folder, "0003_slow.sql", "CREATE TABLE three (id INT);\nDO SLEEP(600);\nCREATE TABLE four (id INT);\n")
    code = (
        "import asyncio; from pathlib import Path; from engine.config import Dsn; from migrations.apply import apply;"
        f"asyncio.run(apply(Dsn.parse({str(dsn)!r}), first=True, folder=Path({str(folder)!r})))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as migrator:
        until(lambda: sessions(dsn, "DO SLEEP%"))
        migrator.send_signal(signal.SIGKILL)
    (asleep,) = sessions(dsn, "DO SLEEP%")
    rows(dsn, f"KILL {asleep}")  # the server would notice by itself at the statement's end
    until(lambda: not sessions(dsn, "DO SLEEP%"))
    text = (folder / "0003_slow.sql").read_text().replace("600", "0")
    write(folder, "0003_slow.sql", text)
    assert run(dsn, folder) == ["0003_slow.sql"]
    assert rows(dsn, "SHOW TABLES LIKE 'four'") == [("four",)]


def sessions(dsn: Dsn, statement: str) -> list[object]:
    text = f"SELECT id FROM information_schema.processlist WHERE info LIKE '{statement}'"
    return [row[0] for row in rows(replace(dsn, database=""), text)]


def test_a_statement_that_finds_its_work_done_is_an_error_where_nothing_was_killed(dsn: Dsn, folder: Path) -> None:
    write(folder, "0003_again.sql", "CREATE TABLE one (id INT);\n")
    with pytest.raises(OperatorError, match="already exists"):
        run(dsn, folder)


def test_a_second_migrator_waits_and_then_says_so(dsn: Dsn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(dsn, folder)
    monkeypatch.setattr(module, "LOCK_S", 0)

    async def meet() -> None:
        holder = await Connection.open(dsn, 60)
        await holder.execute("lock_migrations", {"seconds": 0})
        with pytest.raises(OperatorError, match="another migration"):
            await apply(dsn, first=True, folder=folder)
        await holder.close()
        assert await apply(dsn, first=True, folder=folder) == []

    asyncio.run(meet())


def test_two_migrators_at_once_apply_everything_once(dsn: Dsn, folder: Path) -> None:
    async def both() -> list[list[str]]:
        return await asyncio.gather(*[apply(dsn, first=True, folder=folder) for _ in range(2)])

    assert sorted(asyncio.run(both())) == [[], ["0001_one.sql", "0002_two.sql"]]


@pytest.mark.parametrize("ends", [True, False])
def test_a_migration_gets_in_between_long_transactions_or_says_so(
    dsn: Dsn, folder: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(connection_module, "SESSION", "SET SESSION lock_wait_timeout=1, wait_timeout={wait_timeout_s}")
    monkeypatch.setattr(module, "CONFLICT_PAUSE_S", 0)
    monkeypatch.setattr(module, "CONFLICT_TRIES_MAX", 2)
    run(dsn, folder)
    write(folder, "0003_three.sql", "ALTER TABLE two ADD COLUMN x INT;\n")

    async def meet() -> list[str]:
        holder = await Connection.open(dsn, 60)
        holder.begin()
        await holder.run(b"SELECT * FROM two")
        migrator = asyncio.create_task(apply(dsn, first=True, folder=folder))
        await asyncio.to_thread(until, lambda: rows(dsn, WAITING))
        if ends:
            await holder.rollback()
        try:
            return await asyncio.wait_for(migrator, 20)
        finally:
            await holder.close()

    if ends:
        assert asyncio.run(meet()) == ["0003_three.sql"]
    else:
        with pytest.raises(OperatorError, match=r"cannot migrate .*Lock wait timeout"):
            asyncio.run(meet())
    assert run(dsn, folder) == ([] if ends else ["0003_three.sql"])


def test_a_changed_file_is_refused_before_anything_is_done(dsn: Dsn, folder: Path) -> None:
    run(dsn, folder)
    write(folder, "0002_two.sql", TWO + "-- A remark.\n")
    write(folder, "0003_three.sql", "CREATE TABLE three (id INT);\n")
    with pytest.raises(OperatorError, match=r"0002_two\.sql was changed after it was applied to .*: restore it"):
        run(dsn, folder)
    assert rows(dsn, "SHOW TABLES LIKE 'three'") == []


def test_a_database_of_a_newer_release_is_refused_and_untouched(dsn: Dsn, folder: Path) -> None:
    run(dsn, folder)
    before = rows(dsn, "SELECT * FROM migrations")
    (folder / "0002_two.sql").unlink()
    with pytest.raises(OperatorError, match=r"newer release \(0002_two\.sql\): upgrade"):
        run(dsn, folder)
    assert rows(dsn, "SELECT * FROM migrations") == before


def test_a_failing_statement_is_one_clear_line(dsn: Dsn, folder: Path) -> None:
    write(folder, "0003_wrong.sql", "ALTER TABLE nowhere ADD COLUMN x INT;\n")
    with pytest.raises(OperatorError, match=r"cannot migrate mysql://root@/fresh.*nowhere' doesn't exist") as caught:
        run(dsn, folder)
    assert "\n" not in str(caught.value)


def test_a_number_twice_is_our_mistake(folder: Path) -> None:
    write(folder, "0002_again.sql", "")
    with pytest.raises(ValueError, match=r"\[1, 2, 2\]"):
        read_folder(folder)


def test_a_file_whose_number_was_left_out_is_applied_later(dsn: Dsn, folder: Path) -> None:
    write(folder, "0004_four.sql", "CREATE TABLE four (x INT);\n")
    run(dsn, folder)
    write(folder, "0003_three.sql", "CREATE TABLE three (x INT);\n")
    assert run(dsn, folder) == ["0003_three.sql"]


def test_the_schema_file_is_what_the_migrations_add_up_to(dsn: Dsn) -> None:
    assert asyncio.run(migrated_schema(dsn)) == (module.FOLDER / "schema.sql").read_text()


def test_applying_the_real_files_twice_changes_nothing(shard_dsn: Dsn) -> None:
    assert asyncio.run(apply(shard_dsn, first=True)) == []
