"""A Cassandra of our own in a folder: one node on this machine's loopback, started, watched and ended without root.

    <home>/data/ commitlog/ hints/ …   what it keeps
    <home>/conf/                       its settings, written anew at each start
    <home>/log/                        what it says: system.log, and stdout.log of this start
    <home>/lock                        held by the process that runs the node
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from engine.local.apt import Say, say_on_stderr
from engine.local.cassandra_program import CassandraProgram, find_cassandra
from engine.local.home import last_line, lines_of
from engine.local.listener import free_port
from engine.local.process import spawn
from engine.local.server import MIB, LocalServer

# Jars aside: commit log segments, the first tables, and room to compact.
FRESH_DATA_BYTES = 600 * MIB
# How long a row that it has acknowledged may be missing from its disk.
SYNC_MS = 1_000
HEAP_MIB = 512

# CQL, protocol 4: OPTIONS asks what is supported, and SUPPORTED answers.
_OPTIONS = bytes.fromhex("040000000500000000")
_SUPPORTED_VERSION, _SUPPORTED = 0x84, 0x06


class CassandraServer(LocalServer):
    """One node; the CQL port stays the same from its first start on."""

    what = "Cassandra"
    # It answers after 9 to 14 s where nothing else runs; replaying a commit log and a busy machine take longer.
    ready_s_max = 300
    poll_s = 0.05
    say_every_ms = 10_000

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
        super().__init__(home, say)
        self.log = self.home / "log" / "system.log"
        self.address = address
        self.port = 0
        self._storage_port = storage_port
        self._seed = seed
        self._heap_mib = heap_mib
        self._flags = flags
        self._find = find

    def _spawn_server(self) -> subprocess.Popen[bytes]:
        if not (self.home / "data").is_dir():
            self._need_room(FRESH_DATA_BYTES)
        program = self._find(self._say)
        self.port = self.port or free_port()
        self._storage_port = self._storage_port or free_port()
        self._configure()
        with (self.home / "log" / "stdout.log").open("wb") as log:
            return spawn(self._command(program), log, signal.SIGTERM)

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
            *self._markers(),
            "-Dcassandra-foreground=yes",
            *self._flags,
            "-cp",
            f"{conf}:{program.lib}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def _markers(self) -> list[str]:
        return [f"-Dcassandra.storagedir={self.home}"]

    def _answers(self) -> bool:
        return answers(self.address, self.port)

    def _reason(self) -> str:
        """The first error of the log, which is the cause of those after it; else the last word of this start."""
        errors = [line for line in lines_of(self.log) if line.startswith("ERROR")]
        stdout = self.home / "log" / "stdout.log"
        return f"{errors[0] if errors else last_line(stdout)} (see {self.log.parent})"


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
