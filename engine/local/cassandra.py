"""A Cassandra of our own in a folder: one node on this machine's loopback, started, watched and ended without root.

    <home>/data/ commitlog/ hints/ …   what it keeps
    <home>/conf/                       its settings, written anew at each start
    <home>/log/                        what it says: system.log, and stdout.log of this start
    <home>/lock                        held by the process that runs the node

The lock is the starter's, as with MySQL: a node that runs while it is free is an orphan, and is ended first.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from engine.clock import SystemClock
from engine.errors import OperatorError
from engine.local.apt import Say, say_on_stderr
from engine.local.cassandra_program import CassandraProgram, find_cassandra
from engine.local.home import Home, ended_within, last_line, lines_of
from engine.local.listener import free_port
from engine.local.process import end_child, end_stranger, running_with, spawn

MIB = 1 << 20

# It answers after 9 to 14 s where nothing else runs; replaying a commit log and a busy machine take longer.
READY_S_MAX = 300
STOP_S_MAX = 60
POLL_S = 0.05
SAY_EVERY_MS = 10_000
# Jars aside: commit log segments, the first tables, and room to compact.
FRESH_DATA_BYTES = 600 * MIB
# How long a row that it has acknowledged may be missing from its disk.
SYNC_MS = 1_000
HEAP_MIB = 512

# CQL, protocol 4: OPTIONS asks what is supported, and SUPPORTED answers.
_OPTIONS = bytes.fromhex("040000000500000000")
_SUPPORTED_VERSION, _SUPPORTED = 0x84, 0x06


class CassandraServer:
    """One node. `launch` and `wait_ready` are apart so that others start meanwhile; `start` does both.

    Start it from the main thread: the kernel ends it when the thread that started it ends.
    """

    def __init__(
        self,
        home: Path,
        *,
        address: str = "127.0.0.1",
        storage_port: int | None = None,
        seed: str | None = None,
        heap_mib: int = HEAP_MIB,
        flags: tuple[str, ...] = (),
        find: Callable[[Say], CassandraProgram] = find_cassandra,
        say: Say = say_on_stderr,
    ) -> None:
        """Nodes of one ring share the ``storage_port`` and name one of them, ``address:storage_port``, as ``seed``.
        ``flags`` are further ones of the JVM."""
        self._home = Home(home)
        self.home = self._home.path
        self.log = self.home / "log" / "system.log"
        self.address = address
        self.port = 0
        self._storage_port = storage_port
        self._seed = seed
        self._heap_mib = heap_mib
        self._flags = flags
        self._find = find
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CassandraServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns once CQL answers. Raises OperatorError in one line when it cannot."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process, without waiting until it answers; the CQL port stays the same from then on."""
        try:
            self._home.take()
            self._end_orphan()
            self._need_room()
            program = self._find(self._say)
            self.port = self.port or free_port()
            self._storage_port = self._storage_port or free_port()
            self._configure()
            with (self.home / "log" / "stdout.log").open("wb") as log:
                self._process = spawn(self._command(program), log, signal.SIGTERM)
        except OSError as error:
            self._let_go()
            raise OperatorError(f"Cassandra in {self.home}: {error.strerror}: {error.filename}") from error
        except OperatorError:
            self._let_go()
            raise

    def wait_ready(self) -> None:
        """Returns once the launched node answers."""
        process, clock = self._running(), SystemClock()
        started_ms = said_ms = clock.boot_ms()
        while not answers(self.address, self.port):
            if ended_within(process, POLL_S):
                self._fail("did not start")
            now_ms = clock.boot_ms()
            if now_ms - started_ms > READY_S_MAX * 1000:
                self._fail(f"did not answer within {READY_S_MAX} s")
            if now_ms - said_ms > SAY_EVERY_MS:
                said_ms = now_ms
                self._say(f"waiting for Cassandra in {self.home}: {(now_ms - started_ms) // 1000} s")

    def stop(self, seconds_max: float = STOP_S_MAX) -> None:
        """End it in order, or by force after that time; it replays its commit log after that."""
        if self._process:
            end_child(self._process, seconds_max)
        self._let_go()

    @property
    def pid(self) -> int:
        return self._running().pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._running().poll()

    def _end_orphan(self) -> None:
        for pid in running_with(self._marker):
            self._say(f"ending a Cassandra that was left running in {self.home} (process {pid})")
            end_stranger(pid, self._marker, STOP_S_MAX)

    def _need_room(self) -> None:
        free = shutil.disk_usage(self.home).free
        if not (self.home / "data").is_dir() and free < FRESH_DATA_BYTES:
            raise OperatorError(
                f"Cassandra in {self.home} needs {FRESH_DATA_BYTES // MIB} MB of disk, {free // MIB} MB are free"
            )

    def _configure(self) -> None:
        """Everything of this start that a file has to say."""
        for folder in ("conf", "log", "tmp"):
            (self.home / folder).mkdir(exist_ok=True)
        values = {
            "home": self.home,
            "address": self.address,
            "port": self.port,
            "storage_port": self._storage_port,
            "seed": self._seed or f"{self.address}:{self._storage_port}",
            "heap_mib": self._heap_mib,
            "sync_ms": SYNC_MS,
        }
        for name in ("cassandra.yaml", "logback.xml", "jvm.options"):
            text = (files("engine.local") / "cassandra_files" / name).read_text()
            for key, value in values.items():
                text = text.replace(f"{{{key}}}", str(value))
            (self.home / "conf" / name).write_text(text)

    def _command(self, program: CassandraProgram) -> list[str]:
        conf = self.home / "conf"
        return [
            program.java.command,
            f"@{conf / 'jvm.options'}",
            f"-javaagent:{program.agent}",
            f"-Djava.io.tmpdir={self.home / 'tmp'}",
            f"-Djna.tmpdir={self.home / 'tmp'}",
            f"-Dcassandra.config=file://{conf / 'cassandra.yaml'}",
            f"-Dlogback.configurationFile=file://{conf / 'logback.xml'}",
            f"-Dcassandra.logdir={self.home / 'log'}",
            self._marker,
            "-Dcassandra-foreground=yes",
            *self._flags,
            "-cp",
            f"{conf}:{program.lib}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    @property
    def _marker(self) -> str:
        """The argument by which a process is known to be this folder's."""
        return f"-Dcassandra.storagedir={self.home}"

    def _fail(self, what: str) -> NoReturn:
        reason = self._reason()
        self.stop()
        raise OperatorError(f"Cassandra in {self.home} {what}: {reason}")

    def _reason(self) -> str:
        """The first error of the log, which is the cause of those after it; else the last word of this start."""
        errors = [line for line in lines_of(self.log) if line.startswith("ERROR")]
        stdout = self.home / "log" / "stdout.log"
        return f"{errors[0] if errors else last_line(stdout)} (see {self.log.parent})"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"the node in {self.home} was not started")
        return self._process

    def _let_go(self) -> None:
        self._process = None
        self._home.let_go()


def answers(address: str, port: int) -> bool:
    """Whether a node speaks CQL there."""
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            connection.settimeout(3)
            connection.sendall(_OPTIONS)
            said = connection.recv(5)
    except OSError:
        return False
    return len(said) == 5 and (said[0], said[4]) == (_SUPPORTED_VERSION, _SUPPORTED)
