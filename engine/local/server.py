"""A server of our own in a folder: what MySQL and Cassandra have alike in starting, being waited for and ending.

The lock of the folder is the starter's, not the server's: where it is free and a server runs all the same, that is an
orphan of a killed starter, and it is ended before the next one starts. So there is one way to start, whatever came
before.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self

from engine.clock import SystemClock
from engine.errors import OperatorError
from engine.local.apt import Say
from engine.local.home import Home, ended_within
from engine.local.process import end_child, end_stranger, running_with

MIB = 1 << 20

STOP_S_MAX = 60


class LocalServer(ABC):
    """`launch` and `wait_ready` are apart so that others start meanwhile; `start` does both.

    Start it from the main thread: the kernel ends it when the thread that started it ends.
    """

    what: str
    ready_s_max: int
    poll_s: float
    say_every_ms: int

    def __init__(self, home: Path, say: Say) -> None:
        self._home = Home(home)
        self.home = self._home.path
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns once the server answers. Raises OperatorError in one line when it cannot."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Make ready what is new and start the process, without waiting until it answers."""
        try:
            self._home.take()
            self._end_orphans()
            self._process = self._spawn_server()
        except OSError as error:
            self._let_go()
            raise OperatorError(f"{self.what} in {self.home}: {error.strerror}: {error.filename}") from error
        except OperatorError:
            self._let_go()
            raise

    def wait_ready(self) -> None:
        """Returns once the launched server answers."""
        process, clock = self._running(), SystemClock()
        started_ms = said_ms = clock.boot_ms()
        while not self._answers():
            if ended_within(process, self.poll_s):
                self._fail("did not start")
            now_ms = clock.boot_ms()
            if now_ms - started_ms > self.ready_s_max * 1000:
                self._fail(f"did not answer within {self.ready_s_max} s")
            if now_ms - said_ms > self.say_every_ms:
                said_ms = now_ms
                waited_s = (now_ms - started_ms) // 1000
                self._say(f"waiting for {self.what} in {self.home}: {waited_s} s{self._doing()}")

    def stop(self, seconds_max: float = STOP_S_MAX) -> None:
        """End it in order, or by force after that time; either recovers from force at its next start."""
        if self._process:
            end_child(self._process, seconds_max)
        self._let_go()

    @property
    def pid(self) -> int:
        return self._running().pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._running().poll()

    @abstractmethod
    def _markers(self) -> Sequence[str]:
        """Arguments by which a process is known to be this folder's."""

    @abstractmethod
    def _spawn_server(self) -> subprocess.Popen[bytes]:
        """The folder is ours, and nothing runs in it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes statements by now."""

    @abstractmethod
    def _reason(self) -> str:
        """Why it failed, in one line, from what it said."""

    def _doing(self) -> str:
        """What is added to the line that says how long it has been waited for."""
        return ""

    def _end_orphans(self) -> None:
        for marker in self._markers():
            for pid in running_with(marker):
                self._say(f"ending a {self.what} that was left running in {self.home} (process {pid})")
                end_stranger(pid, marker, STOP_S_MAX)

    def _need_room(self, needed_bytes: int) -> None:
        free = shutil.disk_usage(self.home).free
        if free < needed_bytes:
            raise OperatorError(
                f"{self.what} in {self.home} needs {needed_bytes // MIB} MB of disk, {free // MIB} MB are free"
            )

    def _fail(self, how: str) -> NoReturn:
        reason = self._reason()
        self.stop()
        raise OperatorError(f"{self.what} in {self.home} {how}: {reason}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"the server in {self.home} was not started")
        return self._process

    def _let_go(self) -> None:
        self._process = None
        self._home.let_go()
