"""A MySQL server of our own: it starts whatever the last start left behind, and says in one line why it cannot."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engine.config import Dsn
from engine.errors import OperatorError, StoreUnavailable
from engine.local import mysqld as module
from engine.local.mysql_program import Program, private_program
from engine.local.mysqld import MIB, MysqlServer
from engine.local.process import running_with
from tests.support.mysql import query, server_folder
from tests.support.wait import until

SMALL = {"buffer_pool_bytes": 128 * MIB, "redo_log_bytes": 100 * MIB}
SETTINGS = "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, @@innodb_doublewrite, @@skip_networking"
STARTER = """
import signal, sys
from pathlib import Path
from engine.local.mysqld import MysqlServer
server = MysqlServer(Path(sys.argv[1]), dies_with_starter=sys.argv[2] == "dies", redo_log_bytes=100 << 20)
server.start()
print("up", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def initialized(memory: Path) -> Path:
    """A home that was started, given a row and stopped; tests work on copies."""
    with MysqlServer(memory / "initialized", **SMALL) as first:
        rows(first, "CREATE DATABASE kept")
        rows(first, "CREATE TABLE kept.kept (id INT PRIMARY KEY)")
        rows(first, "INSERT INTO kept.kept VALUES (7)")
        pid = first.pid
    assert not Path(f"/proc/{pid}").exists()
    return memory / "initialized"


@pytest.fixture
def home(memory: Path, initialized: Path) -> Iterator[Path]:
    home = memory / "home"
    shutil.copytree(initialized, home)
    yield home
    for pid in alive(home):  # left by a starter that the test killed
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(home))
    shutil.rmtree(home)


@contextmanager
def server(home: Path, **options: object) -> Iterator[MysqlServer]:
    """Killed at the end: an orderly stop takes a second longer, and `initialized` has one."""
    with MysqlServer(home, **(SMALL | options), say=lambda line: None) as running:
        yield running
        running.stop(0)


def rows(running: MysqlServer, text: str) -> list[tuple[object, ...]]:
    return asyncio.run(query(running.dsn(""), text))


def kept(home: Path) -> list[tuple[object, ...]]:
    with server(home) as running:
        return rows(running, "SELECT id FROM kept.kept")


@contextmanager
def starter(home: Path, fate: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts the server; killed at the end at the latest."""
    command = [sys.executable, "-c", STARTER, str(home), fate]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def alive(home: Path, folder: str = "data") -> list[int]:
    return running_with(f"--datadir={home / folder}")


def test_it_is_durable_offline_and_open_to_its_user_alone(home: Path) -> None:
    home.chmod(0o755)
    with server(home) as running:
        assert rows(running, SETTINGS) == [(1, 1, 1, "ON", 1)]
        path = Path(running.dsn("").unix_socket)
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_servers_run_side_by_side_and_wait_together(memory: Path, home: Path) -> None:
    other = memory / "other"
    shutil.copytree(home, other)
    pair = [MysqlServer(folder, **SMALL) for folder in (home, other)]
    try:
        for each in pair:
            each.launch()
        for each in pair:
            each.wait_ready()
        assert pair[0].pid != pair[1].pid
    finally:
        for each in pair:
            each.stop(0)
        shutil.rmtree(other)


def test_a_killed_server_recovers_what_was_committed(home: Path) -> None:
    with server(home) as running:
        rows(running, "INSERT INTO kept.kept VALUES (8)")
        assert running.exit_status() is None
        os.kill(running.pid, signal.SIGKILL)
        assert until(running.exit_status) == -signal.SIGKILL
    assert kept(home) == [(7,), (8,)]


def test_a_killed_initialization_is_redone(memory: Path) -> None:
    home = memory / "new"
    with starter(home, "dies") as process:
        until(lambda: (home / "data.new" / "ibdata1").exists())
        process.kill()
        process.wait()
    assert not (home / "data").exists()
    with server(home) as running:
        assert rows(running, "SELECT 1") == [(1,)]
    assert not (home / "data.new").exists()
    shutil.rmtree(home)


def test_a_server_dies_with_its_starter_and_the_next_start_waits_for_that(home: Path) -> None:
    with starter(home, "dies") as process:
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.wait()
    assert kept(home) == [(7,)]
    assert not alive(home)


def test_a_server_left_by_a_killed_starter_is_ended_before_the_next_starts(home: Path) -> None:
    with starter(home, "lives") as process:
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.wait()
    (orphan,) = alive(home)
    with server(home) as running:
        assert alive(home) == [running.pid] != [orphan]


def test_a_folder_in_use_is_refused_at_once_and_its_server_lives_on(home: Path) -> None:
    with starter(home, "dies") as process:
        assert process.stdout.readline() == "up\n"
        (pid,) = alive(home)
        with pytest.raises(OperatorError, match="in use by another running process"), server(home):
            pass
        assert alive(home) == [pid]


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(
    memory: Path, initialized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))
    deep = memory / ("d" * 60) / ("e" * 60)
    shutil.copytree(initialized, deep)
    with server(deep) as running:
        path = Path(running.dsn("").unix_socket)
        assert len(str(path)) < module.SOCKET_PATH_BYTES_MAX
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert rows(running, "SELECT id FROM kept.kept") == [(7,)]
    shutil.rmtree(deep.parent)


def test_a_socket_folder_that_another_could_have_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"secondzero-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    deep = tmp_path / ("d" * 110)
    (deep / "data").mkdir(parents=True)
    (deep / "program").write_text("fake")
    fake = Program("fake", ("false",))
    with pytest.raises(OperatorError, match="must be a folder of your own"), server(deep, finders=[lambda say: fake]):
        pass


def test_a_port_in_use_is_one_clear_line(home: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OperatorError, match="Address already in use") as caught, server(home, port=port):
            pass
    assert "\n" not in str(caught.value)


def test_through_its_port_nobody_is_root_without_a_password(home: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with server(home, port=port) as running:
        assert rows(running, "SELECT @@bind_address, @@port") == [("127.0.0.1", port)]
        with pytest.raises(StoreUnavailable, match="not allowed to connect"):
            asyncio.run(query(Dsn("root", "", "127.0.0.1", port, ""), "SELECT 1"))
        rows(running, "CREATE USER someone@'127.0.0.1' IDENTIFIED BY 'pass/word:'")
        someone = Dsn.parse(f"mysql://someone:pass%2Fword%3A@127.0.0.1:{port}/information_schema")
        assert asyncio.run(query(someone, "SELECT CURRENT_USER()")) == [("someone@127.0.0.1",)]


def test_a_disk_without_room_is_one_clear_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 299 * MIB))
    with pytest.raises(OperatorError, match="needs 300 MB of disk, 299 MB are free"), server(tmp_path / "home"):
        pass
    assert not (tmp_path / "home" / "data.new").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match=r"Not a directory: .*file") as caught, server(tmp_path / "file" / "home"):
        pass
    assert "\n" not in str(caught.value)


def test_a_server_that_will_not_start_is_told_with_the_first_error_of_its_log(home: Path) -> None:
    os.truncate(home / "data" / "ibdata1", 1000)
    with pytest.raises(OperatorError, match=r"did not start: .*ibdata1.*\(see .*mysqld\.log\)") as caught, server(home):
        pass
    assert "\n" not in str(caught.value)
    assert "Aborting" not in str(caught.value)


def test_a_program_that_cannot_initialize_gives_way_to_the_next(memory: Path) -> None:
    """As where AppArmor keeps the packaged mysqld within its own folders."""
    said: list[str] = []
    confined = Program("confined", ("sh", "-c", "echo '0 [ERROR] [MY-1] [Server] Permission denied'; exit 1"))
    home = memory / "next"
    finders = [lambda say: confined, private_program]
    with MysqlServer(home, **SMALL, finders=finders, say=said.append) as running:
        assert rows(running, "SELECT 1") == [(1,)]
    assert (home / "program").read_text() == "private"
    assert any("confined cannot initialize" in line and "Permission denied" in line for line in said)
    shutil.rmtree(home)


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo a warning; exec sleep 60", r"has not initialized \S+ within 0\.2 s: a warning"),
        ("echo a warning; kill -9 $$", r"cannot initialize \S+ \(exit status -9\): a warning"),
        ("echo a warning; exit 3", r"cannot initialize \S+ \(exit status 3\): a warning"),
    ],
)
def test_how_an_initialization_ended_is_told_where_the_log_has_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, ended: str
) -> None:
    monkeypatch.setattr("engine.local.mysqld.INITIALIZE_S_MAX", 0.2 if "sleep" in script else 60)
    finders = [lambda say: Program("program", ("sh", "-c", script))]
    with pytest.raises(OperatorError, match=ended), MysqlServer(tmp_path / "home", **SMALL, finders=finders):
        pass


def test_data_is_started_with_the_program_that_made_it(home: Path) -> None:
    """The first finder would do, but may be older or confined."""
    with server(home, finders=[lambda say: Program("other", ("false",)), private_program]) as running:
        assert rows(running, "SELECT 1") == [(1,)]


def test_where_no_server_can_be_had_the_ways_on_are_listed(tmp_path: Path) -> None:
    def none(say: object) -> Program:
        raise OperatorError("no mysqld on PATH")

    with pytest.raises(OperatorError) as caught, server(tmp_path / "home", finders=[none, none]):
        pass
    for way in ("no mysqld on PATH", "--shard mysql://", "mysql-server", "apt-get", "compose.yaml"):
        assert way in str(caught.value)
    assert "\n" not in str(caught.value)
