"""Whole engines as processes of their own, which tests may stop, kill and give a wrong clock."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import orjson

from engine.config import Dsn
from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from tests.support.breakable import WrongClock
from tests.support.wait import until

READY_S = 40.0
STOP_S = 40

# Leases that are over soon: a fault is survived in seconds, and its test is short.
SHORT_LEASES = ("--lease-ms", "2000", "--heartbeat-ms", "400")

ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("SECONDZERO_")}


class Engine:
    """One `secondzero engine`: a supervisor with its executors and keeper. Its wall clock is off by ``clock``."""

    def __init__(self, log: Path, dsns: Sequence[Dsn], flags: Sequence[str], clock_off_ms: int) -> None:
        self.log = log
        self.clock = WrongClock(log.with_suffix(".clock"), clock_off_ms)
        self._port = free_port()
        self._command = [
            *(sys.executable, "-m", "tests.support.wrong_clock", str(self.clock.path)),
            *("engine", "--executors", "2", "--allow-network", "127.0.0.0/8"),
            *("--metrics-port", str(self._port), *SHORT_LEASES, *flags),
            *(word for dsn in dsns for word in ("--shard", dsn.text())),
        ]
        self._process: Any = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = spawn(self._command, log, signal.SIGKILL, environment=ENVIRON)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ready(self) -> bool:
        assert self.running, self.tail()
        try:
            urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5).close()
        except (HTTPError, OSError):
            return False
        return True

    def children(self) -> dict[str, int]:
        """Process ids by name (`executor-0`, `keeper`) of those that are running now."""
        running: dict[str, int] = {}
        for event in self.events():
            if event["event"] == "child.started":
                running[event["child"]] = event["pid"]
            elif event["event"] == "child.ended" and running.get(event["child"]) == event["pid"]:
                del running[event["child"]]
        return running

    def child(self, name: str) -> int:
        """Waits where it is being started again."""
        return until(lambda: self.children().get(name), READY_S)

    def kill(self, name: str) -> None:
        os.kill(self.child(name), signal.SIGKILL)

    def kill_all(self) -> None:
        """As if the host lost its power: first the supervisor, then whatever the kernel has left."""
        pids = [self.pid, *self.children().values()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """Drain; returns the exit status."""
        return end_child(self._process, STOP_S)

    def events(self) -> list[dict[str, Any]]:
        """What it has told so far."""
        found = []
        for line in self.log.read_bytes().splitlines():
            try:
                found.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                continue  # written half by a killed process, or no event
        return found

    def told(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["event"] == name]

    def tail(self) -> str:
        return b"\n".join(self.log.read_bytes().splitlines()[-15:]).decode(errors="replace")
