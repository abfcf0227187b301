"""What processes have used so far: CPU time and memory, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat, counted behind the command in parentheses: fields 14 and 15, user and system time.
_USER_FIELD, _SYSTEM_FIELD = 14 - 3, 15 - 3


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of living processes, all their threads together; one that is gone counts nothing."""
    return sum(map(_ticks, pids)) / _TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory in use by living processes; pages that several share count once in each."""
    return sum(map(_resident_pages, pids)) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """The processes that this one started and that still run."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[_USER_FIELD]) + int(fields[_SYSTEM_FIELD])


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
