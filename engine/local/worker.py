"""A worker of a tenant's functions, beside a service on this machine: the command of the tenants' own package."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from engine.errors import OperatorError
from engine.local.apt import say_on_stderr as say
from engine.local.kept import Kept
from engine.local.process import end_child, spawn

# The tenants' package, which is installed for itself.
COMMAND = "secondzero_client.command"
URL_VARIABLE, KEY_VARIABLE = "SECONDZERO_URL", "SECONDZERO_API_KEY"

# What is under way may finish, for as long as a worker waits by itself.
STOP_S_MAX = 35


class LocalWorker:
    """``module:worker``, looked for from this folder on, working for whoever the key belongs to."""

    def __init__(self, worker: str, url: str, key: str, log: Path) -> None:
        self._worker = worker
        self._environment = {**os.environ, URL_VARIABLE: url, KEY_VARIABLE: key}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """OperatorError where the package is not there."""
        if importlib.util.find_spec(COMMAND.partition(".")[0]) is None:
            raise OperatorError("secondzero-client is not installed here: pip install secondzero-client")
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", COMMAND, self._worker]
            self._process = spawn(command, log, signal.SIGTERM, environment=self._environment)

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            say("stopping the worker")
            end_child(self._process, STOP_S_MAX)

    def kept(self) -> Kept:
        return Kept(f"the worker {self._worker} (see {self._log})", self.start, self.exit_status, say)
