"""A worker: claims runs of its functions, carries each out in a thread or a process, and reports how it ended.

    claim loop (one thread) ──► slots (a thread each) ──► the function, there or in a process of its own
                                   └─ complete, fail            heartbeats (threads of their own) ─► stop

The service decides; the worker only obeys. A run that was cancelled, is past its deadline or was given to another
worker is stopped, and its result thrown away; a stale report would be refused in any case.
"""

from __future__ import annotations

import logging
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from secondzero_client.client import Client
from secondzero_client.ends import Ends
from secondzero_client.errors import ApiError, Conflict, NotFound, SecondZeroError, Unavailable
from secondzero_client.execution import Held, in_process, in_thread, preload
from secondzero_client.heartbeats import CANCELLED, Heartbeats
from secondzero_client.outcome import ERROR_CHARS_MAX, Done, Failed, Function
from secondzero_client.retries import RetryPolicy
from secondzero_client.work import claim, duration, release

RunIn = Literal["thread", "process"]
F = TypeVar("F", bound=Callable[..., Any])

# The most that one claim asks for.
CLAIM_RUNS_MAX = 100
# After a claim that was not answered, growing to this.
CLAIM_PAUSE_S, CLAIM_PAUSE_S_MAX = 0.1, 2.0
# A full claim says that there is more: a moment later more slots are free, and one call fills them.
GATHER_S = 0.005
# For so long a result is kept while the service is away. Heartbeats go on meanwhile.
REPORT_S_MAX = 600.0
STOPPED_S_MAX = 3.0
# A signal that the kernel gave to another thread is handled when the main thread next wakes up.
WAKE_S = 0.2

_log = logging.getLogger("secondzero.worker")


@dataclass(frozen=True)
class Registered:
    """A function and where it runs."""

    function: Function
    run_in: RunIn


class Worker:
    """``concurrency``: runs at the same time. ``run_in``: where functions run that say nothing else. A function in a
    process can be killed, and cannot hold up the others; one in a thread starts in microseconds.

    ``grace_s``: so long the runs under way may go on after a stop; what is left then is given back.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        concurrency: int = 10,
        run_in: RunIn = "thread",
        grace_s: float = 30.0,
    ) -> None:
        self.url, self.api_key = url, api_key
        self.concurrency = concurrency
        self.run_in = run_in
        self.grace_s = grace_s
        self.functions: dict[str, Registered] = {}
        self._stopping = threading.Event()
        self._at_once = threading.Event()

    def function(self, name: str, *, run_in: RunIn | None = None) -> Callable[[F], F]:
        """Decorate a function, sync or async, that takes the payload (or nothing) and returns a result of JSON."""
        if name in self.functions:
            raise ValueError(f"there is a function {name!r} already")

        def register(function: F) -> F:
            self.functions[name] = Registered(function, run_in or self.run_in)
            return function

        return register

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or ``stop``. ApiError if the first claim is refused."""
        self._check()
        retries = RetryPolicy(total_s=REPORT_S_MAX)
        with Client(self.url, self.api_key, retries=retries) as client, self._obeying_signals():
            work = _Work(client, self.functions, self.concurrency, self._stopping)
            work.start()
            while not self._stopping.wait(WAKE_S):
                pass
            work.drain(self.grace_s, self._at_once)
        if work.refused is not None:
            raise work.refused

    def stop(self) -> None:
        """Claim nothing more, and end when what is under way has ended. A second call does not wait for that."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    def _check(self) -> None:
        if not self.functions:
            raise ValueError("the worker has no functions: decorate some with @worker.function(name)")
        if self.concurrency < 1:
            raise ValueError("concurrency is at least 1")
        in_processes = [each.function for each in self.functions.values() if each.run_in == "process"]
        for function in in_processes:
            try:
                pickle.dumps(function)
            except Exception as error:
                raise ValueError(f"{function!r} cannot run in a process: it must be found by its name") from error
        preload(sorted({function.__module__ for function in in_processes}))

    @contextmanager
    def _obeying_signals(self) -> Iterator[None]:
        """A handler may interrupt whoever holds the lock of an event: it only leaves word, for a thread to read."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        told: queue.SimpleQueue[bool] = queue.SimpleQueue()
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: told.put(True)) for number in numbers]

        def listen() -> None:
            while told.get():
                self.stop()

        threading.Thread(target=listen, name="secondzero-signals", daemon=True).start()
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            told.put(False)


class _Work:
    """What is under way in one ``run`` of a worker."""

    def __init__(
        self, client: Client, functions: Mapping[str, Registered], concurrency: int, stopping: threading.Event
    ) -> None:
        self._client = client
        self._functions = functions
        self._concurrency = concurrency
        self._stopping = stopping
        self._heartbeats = Heartbeats(client, concurrency)
        self._held: dict[str, Held] = {}
        self._ends = Ends(client, lambda: len(self._held))
        self._changed = threading.Condition()
        self._claimed: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._slots = 0
        self.refused: ApiError | None = None

    def start(self) -> None:
        self._heartbeats.start()
        threading.Thread(target=self._claim_forever, name="secondzero-claims", daemon=True).start()

    def drain(self, grace_s: float, at_once: threading.Event) -> None:
        """Wait for what is under way, give back what is left."""
        ends_s = time.monotonic() + grace_s
        _log.info("stopping; %d under way", len(self._held))
        while self._held and time.monotonic() < ends_s and not at_once.is_set():
            with self._changed:
                self._changed.wait(0.1)
        left = [held for held in list(self._held.values()) if held.stop("the worker stops")]
        self._wait_stopped(left)
        for held in left:
            self._release(held, started=True)
        self._heartbeats.stop()
        for _ in range(self._slots):
            self._claimed.put(None)

    def _wait_stopped(self, left: list[Held]) -> None:
        """Processes are dead before another worker may begin; a thread goes on until this process ends."""
        ends_s = time.monotonic() + STOPPED_S_MAX
        with self._changed:
            while any(held.token in self._held for held in left) and time.monotonic() < ends_s:
                self._changed.wait(0.1)

    def _claim_forever(self) -> None:
        pause_s, known = CLAIM_PAUSE_S, False
        while not self._stopping.is_set():
            wanted = min(self._wait_for_room(), CLAIM_RUNS_MAX)
            try:
                runs = claim(self._client, list(self._functions), wanted)
            except SecondZeroError as error:
                if isinstance(error, ApiError) and not known:
                    self._refuse(error)
                    return
                _log.warning("claim: %s", error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, CLAIM_PAUSE_S_MAX)
                continue
            if not known:
                known, pause_s = True, CLAIM_PAUSE_S
                _log.info("working: %s; %d at the same time", ", ".join(self._functions), self._concurrency)
            pause_s = CLAIM_PAUSE_S
            self._take(runs)
            if len(runs) == wanted:
                self._stopping.wait(GATHER_S)

    def _wait_for_room(self) -> int:
        with self._changed:
            while len(self._held) >= self._concurrency and not self._stopping.is_set():
                self._changed.wait()
            return max(1, self._concurrency - len(self._held))

    def _refuse(self, error: ApiError) -> None:
        self.refused = error
        self._stopping.set()

    def _take(self, runs: list[dict[str, Any]]) -> None:
        for claimed in runs:
            held = Held(claimed, claimed["interval_s"])
            if self._stopping.is_set():
                self._release(held, started=False)
                continue
            self._heartbeats.add(held)
            with self._changed:
                self._held[held.token] = held
            self._claimed.put(held)
            if self._slots < min(len(self._held), self._concurrency):
                self._slots += 1
                threading.Thread(target=self._slot, name=f"secondzero-slot-{self._slots}", daemon=True).start()

    def _slot(self) -> None:
        while True:
            held = self._claimed.get()
            if held is None:
                return
            try:
                self._carry_out(held)
            except Exception:
                _log.exception("%s: not reported", held.name)
            finally:
                self._heartbeats.remove(held)
                with self._changed:
                    self._held.pop(held.token, None)
                    self._changed.notify_all()

    def _carry_out(self, held: Held) -> None:
        try:
            registered = self._functions[held.claimed["function"]]
            outcome = (in_process if registered.run_in == "process" else in_thread)(registered.function, held)
        except Exception as error:  # no process could be started, or nobody asked for this function
            outcome = Failed(f"the worker could not run it: {error!r}")
        if held.stopped is not None:
            if held.stopped == CANCELLED:  # it has obeyed; where it does not, the service ends the run by itself
                self._release(held, started=True)
            return
        try:
            self._report(held, outcome)
        except (Conflict, NotFound):
            _log.warning("%s: the result was refused: the run has ended or is another worker's", held.name)
        except Unavailable as error:
            _log.error("%s: the result could not be reported: %s", held.name, error)

    def _report(self, held: Held, outcome: Done | Failed) -> None:
        if isinstance(outcome, Done):
            try:
                self._ends.complete(held.token, outcome.result)
                return
            except Conflict:
                raise
            except ApiError as error:  # its result is not taken, and would not be the next time
                outcome = Failed(str(error), retryable=False)
        _log.warning("%s: failed: %s", held.name, outcome.error)
        said, retry_after = outcome.error[:ERROR_CHARS_MAX], duration(outcome.retry_after)
        self._client.fail_work(held.token, said, retryable=outcome.retryable, retry_after=retry_after)

    def _release(self, held: Held, *, started: bool) -> None:
        try:
            release(self._client, held.token, started=started, total_s=STOPPED_S_MAX)
        except SecondZeroError as error:  # it is given to another worker when its heartbeats are missed
            _log.warning("%s: not given back: %s", held.name, error)
