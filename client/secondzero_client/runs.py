"""A run as the function sees it: what it was called for, how long it has, and whether anybody still waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

# Cut to these before they are sent.
NOTE_CHARS_MAX = 255


class Retry(Exception):
    """Raised by a function: this attempt has failed, and a later one may do better.

    ``after``: not before so long, in seconds or like "5m". (Any other exception is a failure to be tried again too.)
    """

    def __init__(self, message: str = "", *, after: float | str | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fatal(Exception):
    """Raised by a function: no other attempt would do better. The run becomes a dead letter at once."""


class Run:
    """What is under way. Times are the service's; ``deadline`` is when it ends the run."""

    def __init__(self, claimed: dict[str, Any], report: Callable[[int | None, str | None], None]) -> None:
        self.function: str = claimed["function"]
        self.payload: Any = claimed.get("payload")
        self.job: str = claimed["job"]
        self.job_id: str = claimed["job_id"]
        self.scheduled_at = read_time(claimed["scheduled_at"])
        self.attempt: int = claimed["attempt"]
        self.idempotency_key: str = claimed["idempotency_key"]
        self.deadline = read_time(claimed["deadline"])
        self.trigger: str = claimed.get("trigger", "schedule")
        self.cancelled = threading.Event()
        """Set when nobody waits for the result any more: cancelled, past its deadline, given to another worker, or this
        worker stops. What the function returns then is thrown away."""
        self._ends_s = claimed.get("ends_s")
        self._report = report
        self._cancel_task: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def remaining_s(self) -> float:
        """Seconds until the deadline, whatever this machine's clock says."""
        return float("inf") if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def progress(self, percent: float | None = None, note: str | None = None) -> None:
        """Tell how far it is, 0 to 100, and a note; the next heartbeat carries the latest."""
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError(f"progress is from 0 to 100, not {percent}")
        self._report(None if percent is None else int(percent), None if note is None else note[:NOTE_CHARS_MAX])

    def stop(self) -> None:
        """Nobody waits any more. For the worker to call."""
        with self._lock:
            self.cancelled.set()
            if self._cancel_task is not None:
                self._cancel_task()

    def cancels(self, cancel_task: Callable[[], None] | None) -> None:
        """What else to do when it is stopped, now if it has been. For the worker to call."""
        with self._lock:
            self._cancel_task = cancel_task
            if cancel_task is not None and self.cancelled.is_set():
                cancel_task()


_current: ContextVar[Run] = ContextVar("secondzero_run")


def current_run() -> Run:
    """The run that this code is part of. RuntimeError outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("current_run() is for a function that a worker runs") from None


def enter_run(run: Run) -> None:
    """From now on this context is part of a run. For the worker to call."""
    _current.set(run)


def read_time(text: str) -> datetime:
    """RFC 3339, as the service writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
