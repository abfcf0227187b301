"""Servers and clocks that can be broken from outside: a disk that is full on demand, a wall clock that is stepped."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.local.mysqld import MysqlServer

DISK = Path(__file__).with_name("full_disk.c")
OFFSET_BYTES = 8


class BreakableServer(MysqlServer):
    """A server with `full_disk.c` between it and its disk."""

    def __init__(self, home: Path, library: Path, **settings: Any) -> None:
        super().__init__(home, **settings)
        self._library = library
        self._flag = home.with_name(f"{home.name}-full")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file of it can grow meanwhile."""
        self._flag.touch()
        try:
            yield
        finally:
            self._flag.unlink()

    def _spawn(self, *arguments: Any) -> subprocess.Popen[bytes]:
        with patch.dict(os.environ, LD_PRELOAD=str(self._library), FULL_DISK=str(self._flag)):
            return super()._spawn(*arguments)


def disk_library(folder: Path) -> Path:
    """`full_disk.c`, compiled."""
    library = folder / "full_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, DISK], check=True)
    return library


class WrongClock:
    """How far the wall clock of an engine is off: a file of one number, which tests/support/wrong_clock.py reads at
    every look at the clock."""

    def __init__(self, path: Path, offset_ms: int) -> None:
        self.path = path
        path.write_bytes(bytes(OFFSET_BYTES))
        with path.open("r+b") as file:
            self._view = mmap.mmap(file.fileno(), OFFSET_BYTES)
        self.set(offset_ms)

    def set(self, offset_ms: int) -> None:
        self._view[:] = offset_ms.to_bytes(OFFSET_BYTES, "little", signed=True)
