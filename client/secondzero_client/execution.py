"""Where a claimed run is carried out: in the thread that asks for it, or in a process of its own."""

from __future__ import annotations

import contextvars
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from secondzero_client import child
from secondzero_client.outcome import Done, Failed, Function, call
from secondzero_client.runs import Run

# A process that is told to stop has so long to clean up before it is killed.
KILLED_AFTER_S = 1.0
ENDED_AFTER_S = 5.0

# Forked from a server that has imported the functions once and has no threads: neither a fork of a process with
# threads, nor a Python started anew for each run.
_processes = multiprocessing.get_context("forkserver")


class Held:
    """A run that this worker holds. ``stopped`` says why nobody waits for its result any more."""

    def __init__(self, claimed: dict[str, Any], interval_s: float) -> None:
        self.claimed = claimed
        self.token: str = claimed["token"]
        self.name = f"{claimed['job']} {claimed['scheduled_at']} attempt {claimed['attempt']}"
        self.interval_s = interval_s
        self.beat_s = time.monotonic() + interval_s
        self.ends_s: float | None = claimed.get("ends_s")
        self.stopped: str | None = None
        self.progress: tuple[int | None, str | None] = (None, None)
        self.run = Run(claimed, self.report)
        self._stop: Callable[[], None] = self.run.stop
        self._lock = threading.Lock()

    def report(self, percent: int | None, note: str | None) -> None:
        """The latest of each."""
        before_percent, before_note = self.progress
        self.progress = (before_percent if percent is None else percent, before_note if note is None else note)

    def stop(self, why: str) -> bool:
        """Nobody waits for it any more; False if that was known."""
        with self._lock:
            if self.stopped is not None:
                return False
            self.stopped = why
            self._stop()
            return True

    def stops_by(self, stop: Callable[[], None]) -> None:
        """How to stop it from now on; at once if it has been stopped."""
        with self._lock:
            self._stop = stop
            if self.stopped is not None:
                stop()


def in_thread(function: Function, held: Held) -> Done | Failed:
    """In this thread, with a context of its own."""
    return contextvars.copy_context().run(call, function, held.run)


def in_process(function: Function, held: Held) -> Done | Failed:
    """In a new process, which is killed when it is stopped."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=child.main, args=(theirs, function, held.claimed))
    wake_reader, wake_writer = os.pipe()
    try:
        process.start()
        theirs.close()
        held.stops_by(lambda: _wake(wake_writer))
        outcome = _Watch(held, process, ours, wake_reader).wait()
        process.join(ENDED_AFTER_S if held.stopped is None else 0)
        return outcome or Failed(f"the process of the function ended with exit code {process.exitcode}")
    finally:
        held.stops_by(lambda: None)
        _kill(process)
        ours.close()
        os.close(wake_reader)
        os.close(wake_writer)


def preload(modules: list[str]) -> None:
    """Modules that every process of a run needs, imported once."""
    _processes.set_forkserver_preload(modules)


class _Watch:
    """Reads what the process says until it has its outcome, ends, or is killed."""

    def __init__(self, held: Held, process: Any, pipe: Connection, wake: int) -> None:
        self._held = held
        self._process = process
        self._pipe = pipe
        self._wake = wake
        self._kill_s: float | None = None

    def wait(self) -> Done | Failed | None:
        """None: it ended without a word, or was killed."""
        while True:
            timeout_s = None if self._kill_s is None else max(0.0, self._kill_s - time.monotonic())
            watched = [self._pipe, self._process.sentinel, *([self._wake] if self._kill_s is None else [])]
            ready = multiprocessing.connection.wait(watched, timeout_s)
            if self._pipe in ready:
                try:
                    kind, *said = self._pipe.recv()
                except (EOFError, OSError):
                    return None
                if kind == "outcome":
                    return Done(said[1]) if said[0] == "Done" else Failed(*said[1])
                self._held.report(*said)
            elif self._process.sentinel in ready or (self._kill_s is not None and not ready):
                return None
            elif self._wake in ready:
                self._kill_s = time.monotonic() + KILLED_AFTER_S
                with suppress(OSError):
                    self._pipe.send("stop")


def _wake(writer: int) -> None:
    os.write(writer, b"x")


def _kill(process: Any) -> None:
    """With all that it has started, which would go on without anybody who waits for it."""
    if process.pid is None:
        return
    if process.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.join()
