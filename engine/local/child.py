"""A command of ours that runs as a child process: started, found ready, stopped within its own bound."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from urllib.error import HTTPError
from urllib.request import urlopen

from engine.clock import SystemClock
from engine.config import PREFIX, Settings
from engine.errors import OperatorError
from engine.local.apt import say_on_stderr as say
from engine.local.home import last_line
from engine.local.kept import Kept
from engine.local.process import end_child, spawn
from engine.settings import environment

READY_S_MAX = 60
# The API answers what it has accepted; the engine's own bound is 30 s for its executors and 30 s for its keeper.
STOP_S_MAX = {"api": 15, "engine": 65}
POLL_S = 0.05


class Child:
    """`secondzero NAME` with its settings as variables, its output in a file of the data folder's log."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        pass_fds: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``variables`` are set for it besides this process's own."""
        self.name = name
        self.log = settings.data / "log" / f"{name}.log"
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        self._environment |= {**environment(settings), **(variables or {})}
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "engine", self.name]
        with self.log.open("ab") as log:
            self._process = spawn(command, log, signal.SIGKILL, environment=self._environment, pass_fds=self._pass_fds)

    def wait_ready(self, url: str) -> None:
        """Returns once it says so at ``url``; OperatorError if it ends, or is not ready in time."""
        clock = SystemClock()
        deadline_ms = clock.boot_ms() + READY_S_MAX * 1000
        while (answer := _readiness(url)) is not None:
            if self.exit_status() is not None:
                raise OperatorError(
                    f"the {self.name} ended with status {self.exit_status()}: {last_line(self.log)} (see {self.log})"
                )
            if clock.boot_ms() > deadline_ms:
                raise OperatorError(f"the {self.name} was not ready within {READY_S_MAX} s: {answer} (see {self.log})")
            time.sleep(POLL_S)

    @property
    def pid(self) -> int:
        """0 before it was started."""
        return self._process.pid if self._process else 0

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            say(f"stopping the {self.name}")
            end_child(self._process, STOP_S_MAX[self.name])

    def kept(self) -> Kept:
        return Kept(f"the {self.name}", self.start, self.exit_status, say)


def _readiness(url: str) -> str | None:
    """None if it is ready, else what it says."""
    try:
        trust = ssl._create_unverified_context()  # noqa: S323 - our own, certified for the name that others know it by
        urlopen(f"{url}/readyz", timeout=1, context=trust).close()  # noqa: S310 - an address of our own
    except HTTPError as error:
        return error.read(1_000).decode(errors="replace")
    except OSError as error:
        return str(error)
    return None
