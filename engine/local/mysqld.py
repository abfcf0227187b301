"""A MySQL server of our own in a folder: initialized, started, watched and ended without root.

    <home>/data/         the data folder: put there by one rename, so a killed initialization is seen and redone
    <home>/data.new/     an initialization under way
    <home>/mysqld.log    what this start said (`mysqld.log.old`: the one before)
    <home>/program       which mysqld made the data: a later start takes the same
    <home>/lock          held by the process that runs the server
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from engine.config import Dsn
from engine.errors import OperatorError
from engine.local.apt import Say, say_on_stderr
from engine.local.home import ended_within, last_line, lines_of, private_folder
from engine.local.mysql_program import FINDERS, Finder, Program
from engine.local.process import end_child, spawn
from engine.local.server import MIB, LocalServer
from engine.rules.server import VERSION_MIN_TEXT

INITIALIZE_S_MAX = 120
# A fresh data folder holds 190 MB, 100 of them a redo log that then grows to its capacity.
FRESH_DATA_BYTES = 200 * MIB
# sockaddr_un holds 108 bytes with the closing zero.
SOCKET_PATH_BYTES_MAX = 107


class MysqlServer(LocalServer):
    """One server; it outlives its starter where `dies_with_starter` is False."""

    what = "MySQL"
    # Recovery after a crash reads the whole redo log; a slow disk needs minutes for it.
    ready_s_max = 600
    poll_s = 0.02
    say_every_ms = 5_000

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        buffer_pool_bytes: int | None = None,
        redo_log_bytes: int = 1024 * MIB,
        dies_with_starter: bool = True,
        finders: Sequence[Finder] = FINDERS,
        say: Say = say_on_stderr,
    ) -> None:
        """`port` on 127.0.0.1, beside the socket; without it there is no network at all."""
        super().__init__(home, say)
        self.log = self.home / "mysqld.log"
        self._data = self.home / "data"
        self._new_data = self.home / "data.new"
        self._program_file = self.home / "program"
        self._port = port
        self._buffer_pool_bytes = buffer_pool_bytes or machine_buffer_pool_bytes()
        self._redo_log_bytes = redo_log_bytes
        self._death_signal = signal.SIGTERM if dies_with_starter else None
        self._finders = finders
        self._socket = _socket_path(self.home)

    def dsn(self, database: str) -> Dsn:
        """The address of a database in this server, through its socket."""
        return Dsn(user="root", password="", host="localhost", port=0, database=database, unix_socket=str(self._socket))

    def _markers(self) -> list[str]:
        return [f"--datadir={folder}" for folder in (self._data, self._new_data)]

    def _spawn_server(self) -> subprocess.Popen[bytes]:
        program = self._recorded_program() if self._data.is_dir() else self._initialize()
        self._clear_socket()
        return self._spawn([*program.command, *self._settings()], self._death_signal)

    def _answers(self) -> bool:
        return _greets(self._socket)

    def _reason(self) -> str:
        """The first error in the log, which is the cause of those after it; else its last line."""
        for line in lines_of(self.log):
            found = re.search(r"\[ERROR\] (?:\[MY-\d+\] )?(?:\[\w+\] )?(.*)", line)
            if found:
                return f"{found[1]} (see {self.log})"
        return f"{last_line(self.log)} (see {self.log})"

    def _doing(self) -> str:
        return f" ({last_line(self.log)})"

    def _recorded_program(self) -> Program:
        """The program that made the data; if it is gone the first of the others, and MySQL itself judges the step."""
        recorded, others, reasons = self._program_file.read_text(), [], []
        for find in self._finders:
            try:
                program = find(self._say)
            except OperatorError as error:
                reasons.append(str(error))
                continue
            if program.name == recorded:
                return program
            others.append(program)
        if not others:
            raise OperatorError(_no_mysql(reasons))
        return others[0]

    def _initialize(self) -> Program:
        """Make the data folder with the first program that can; the reasons of those that cannot are told."""
        self._need_room(FRESH_DATA_BYTES + self._redo_log_bytes)
        reasons = []
        for find in self._finders:
            try:
                program = find(self._say)
                self._initialize_with(program)
            except OperatorError as error:
                self._say(str(error))
                reasons.append(str(error))
            else:
                return program
        raise OperatorError(_no_mysql(reasons))

    def _initialize_with(self, program: Program) -> None:
        shutil.rmtree(self._new_data, ignore_errors=True)
        command = [*program.command, "--initialize-insecure", f"--datadir={self._new_data}", *_as_root()]
        process = self._spawn(command, signal.SIGKILL)
        if not ended_within(process, INITIALIZE_S_MAX):
            end_child(process, 0)
            raise OperatorError(
                f"{program.name} has not initialized {self._new_data} within {INITIALIZE_S_MAX} s: {self._reason()}"
            )
        if process.returncode:
            ended = f"exit status {process.returncode}"
            raise OperatorError(f"{program.name} cannot initialize {self._new_data} ({ended}): {self._reason()}")
        self._program_file.write_text(program.name)
        self._new_data.rename(self._data)

    def _spawn(self, command: Sequence[str], death_signal: signal.Signals | None) -> subprocess.Popen[bytes]:
        if self.log.exists():
            self.log.replace(self.log.with_name("mysqld.log.old"))
        with self.log.open("wb") as log:
            return spawn(command, log, death_signal)

    def _clear_socket(self) -> None:
        """No server runs here. mysqld would refuse its old lock file if the id in it belongs to any process by now."""
        private_folder(self._socket.parent)
        self._socket.unlink(missing_ok=True)
        self._socket.with_name(self._socket.name + ".lock").unlink(missing_ok=True)

    def _settings(self) -> list[str]:
        network = ["--skip-networking"]
        if self._port:
            network = ["--bind-address=127.0.0.1", f"--port={self._port}"]
        return [
            f"--datadir={self._data}",
            f"--socket={self._socket}",
            *_as_root(),
            *network,
            "--loose-mysqlx=OFF",
            # No look-up delays a connection; and root, who has no password, is root@localhost: through the socket only.
            "--skip-name-resolve",
            "--secure-file-priv=NULL",
            # Two executors, a keeper and the API take about 60; a machine of 16 cores about 200.
            "--max-connections=400",
            f"--innodb-buffer-pool-size={self._buffer_pool_bytes}",
            # At the default of 100 MB a burst of a million settled runs would wait for page flushing.
            # (loose: it came with 8.0.30)
            f"--loose-innodb-redo-log-capacity={self._redo_log_bytes}",
            # What the statements are written for: no gap locks between planners, claimers and settlers.
            "--transaction-isolation=READ-COMMITTED",
            "--max-allowed-packet=64M",
            "--default-time-zone=+00:00",
            # Nothing replicates from here: the binlog is kept for recovery alone, not for 30 days.
            "--binlog-expire-logs-seconds=3600",
            "--max-binlog-size=256M",
        ]


def machine_buffer_pool_bytes() -> int:
    """A sixteenth of the memory, 128 MiB to 1 GiB: two servers, the engine and the API share one small machine, and the
    hot rows of a million runs (about 200 bytes each) fit."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(memory_bytes // 16, 128 * MIB), 1024 * MIB)


def _socket_path(home: Path) -> Path:
    """In the home itself, or, where that path is too long for a socket, in a short folder of this user's own."""
    inside = home / "mysqld.sock"
    if len(os.fsencode(inside)) <= SOCKET_PATH_BYTES_MAX:
        return inside
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 - the folder's owner and mode are checked
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return runtime / f"secondzero-{os.geteuid()}" / f"{name}.sock"


def _as_root() -> list[str]:
    """mysqld refuses to run as root unless told so."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _greets(path: Path) -> bool:
    """True when a server sends its greeting: it takes the socket into use last, when all else is up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(path))
            return bool(connection.recv(1))
        except OSError:
            return False


def _no_mysql(reasons: Sequence[str]) -> str:
    return (
        f"no MySQL server could be made ready ({'; '.join(reasons)}). Ways on: give servers with --shard mysql://…; "
        f"install mysql-server ({VERSION_MIN_TEXT} or newer); make the package mirror reachable for apt-get; "
        "or start those of compose.yaml with `docker compose up --wait` and give them with --shard"
    )
