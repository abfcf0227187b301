"""The folder of one server that runs here: its user's alone, and held by the process that runs the server."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from pathlib import Path
from typing import IO

from engine.errors import OperatorError


class Home:
    """``take`` before the server is started, ``let_go`` once it has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make the folder and hold it; OperatorError where another process does."""
        private_folder(self.path)
        lock = (self.path / "lock").open("a")
        try:
            # A record lock: it is this process's alone, not inherited by what this process forks.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise OperatorError(f"{self.path} is in use by another running process: stop that one first") from error
        self._lock = lock

    def let_go(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None


def private_folder(path: Path) -> None:
    """Make it, or check that it is this user's and closed to all others: whoever enters it is root in the database."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OperatorError(
            f"{path} must be a folder of your own, for it protects a database: remove it or choose another"
        )
    if status.st_mode & 0o077:
        path.chmod(0o700)


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def last_line(log: Path) -> str:
    """The last line that says anything."""
    return next((line for line in reversed(lines_of(log)) if line.strip()), "it said nothing")


def lines_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []
