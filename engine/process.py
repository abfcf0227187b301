"""A process on this machine: how it is known (pids are used again), what it uses, how it is set up."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be imported
# In /proc/PID/stat, counted behind the command in parentheses: field 22, start time in clock ticks since boot.
_START_FIELD = 22 - 3
# Fields 48 and 49: where the arguments begin in this process's memory, and where they end.
_ARGUMENTS_FIELD = 48 - 3

# Objects made beyond those freed before the youngest generation is looked through, and how often the older ones are.
GC_THRESHOLDS = (50_000, 50, 100)


def hide_argument(secret: str) -> None:
    """Overwrite a secret in this process's command line, which every user of the machine can read, with stars."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[_ARGUMENTS_FIELD]), int(stat[_ARGUMENTS_FIELD + 1])
    text, hidden = ctypes.string_at(start, end - start), os.fsencode(secret)
    at = text.find(hidden)
    while at >= 0:
        ctypes.memset(start + at, ord("*"), len(hidden))
        at = text.find(hidden, at + 1)


def host_identity() -> str:
    """Equal for two processes exactly if each can see the other by its pid: host, boot and pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{socket.gethostname()[:64]}/{boot}/{namespace}"


def process_start(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[_START_FIELD])


def used() -> dict[str, int]:
    """CPU time of this process in milliseconds, and its memory in bytes."""
    times = os.times()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "cpu_ms": round((times.user + times.system) * 1000),
        "resident_bytes": resident_pages * os.sysconf("SC_PAGE_SIZE"),
    }


def fork_child(body: Callable[[], None], failed: Callable[[BaseException], None]) -> int:
    """The pid of a child that does this, ends and is killed when we end. ``failed`` is told there what it raised."""
    parent_pid = os.getpid()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(parent_pid)
        body()
        status = 0
    except BaseException as error:
        failed(error)
    finally:
        os._exit(status)


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for this signal when the *thread* that started us ends; end now if the parent has died already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def calm_collector() -> None:
    """What is there at the start stays: the collector need not look at it again.

    A burst makes hundreds of thousands of objects that stay for seconds and form no cycles; looking through them took a
    seventh of an executor's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
