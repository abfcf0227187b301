"""Programs started on this machine: they die with their starter, and end within a bound."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from engine.process import die_with_parent

# After SIGKILL only the kernel's own work is left, which a slow disk can stretch.
KILLED_S_MAX = 30


def spawn(
    command: Sequence[str],
    log: IO[bytes] | int,
    dies_with_starter: signal.Signals | None,
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own (a Ctrl-C is the starter's to handle), its output in `log`.

    It gets the signal when the *thread* that started it ends, however that happens; None lets it live on.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=pass_fds,
        process_group=0,
        preexec_fn=dying_with_starter(dies_with_starter) if dies_with_starter else None,
    )


def dying_with_starter(number: signal.Signals) -> Callable[[], None]:
    """What a child does before it becomes its program, so that it gets this signal when the thread that started it
    ends."""
    return partial(die_with_parent, os.getpid(), number)


def end_child(process: subprocess.Popen[bytes], seconds_max: float) -> int:
    """SIGTERM, and SIGKILL when that was not enough. Returns the exit status."""
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds_max)
    process.kill()
    return process.wait(KILLED_S_MAX)


def running_with(argument: str) -> list[int]:
    """Ids of the processes whose command line has this argument."""
    wanted = os.fsencode(argument)
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _arguments(int(folder.name))]


def end_stranger(pid: int, argument: str, seconds_max: float) -> None:
    """The same for a process that is not our child. `argument` guards against an id that was given to another."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if os.fsencode(argument) in _arguments(pid):
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if not _ended(handle, seconds_max):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                _ended(handle, KILLED_S_MAX)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _ended(handle: int, seconds_max: float) -> bool:
    return bool(select.select([handle], [], [], seconds_max)[0])
