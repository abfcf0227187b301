"""A host of the engine: a supervisor that forks pinned executors, a keeper and, where the history is in Cassandra, a
recorder, and restarts what dies.

The supervisor has no event loop and no connection: it forks, waits, restarts with backoff, drains on SIGTERM and rolls
on SIGHUP, one executor after the other. Its children die with it. The leases of a child that dies are released by the
keeper, which sees within a quarter of a second that the process is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from engine.clock import SystemClock
from engine.config import Settings
from engine.events import Events
from engine.executor import Executor
from engine.health import Board
from engine.keeper import Keeper
from engine.log import LogSubscriber
from engine.metrics import Metrics
from engine.process import calm_collector, fork_child
from engine.seat import Seat

if TYPE_CHECKING:
    from engine.recorder import Recorder

# A child that dies is started again after this, doubled each time it dies soon, up to the maximum.
RESTART_PAUSE_MS = 100
RESTART_PAUSE_MS_MAX = 10_000
LIVED_WELL_MS = 30_000

# A drain waits this long for what is in flight; then the child is killed and its runs are reaped.
DRAIN_MS_MAX = 30_000

# While rolling, the next executor is stopped once the one before has been back for this long.
ROLL_PAUSE_MS = 1_000

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})


@dataclass
class Child:
    """One child process and when it may be started (boot time, milliseconds)."""

    name: str
    slot: int
    cpu: int | None
    pid: int = 0
    started_ms: int = 0
    start_at_ms: int = 0
    pause_ms: int = RESTART_PAUSE_MS


class Supervisor:
    """``run`` blocks until SIGTERM or SIGINT and returns the exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._events = Events()
        self._events.subscribe(LogSubscriber("supervisor", settings.log_level))
        slots = settings.executors + (2 if settings.history == "cassandra" else 1)
        self._board = Board(slots)
        cpus = sorted(os.sched_getaffinity(0))
        self._children = [
            Child(f"executor-{number}", number, cpus[number % len(cpus)]) for number in range(settings.executors)
        ]
        others = ("keeper", "recorder")[: slots - settings.executors]
        self._children += [Child(name, settings.executors + n, None) for n, name in enumerate(others)]
        self._to_roll: list[Child] = []
        self._roll_at_ms = 0

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        stopping = False
        while not stopping:
            now_ms = self._clock.boot_ms()
            self._start_what_is_due(now_ms)
            self._roll(now_ms)
            caught = signal.sigtimedwait(_SIGNALS, self._wait_ms(now_ms) / 1000)
            self._collect(self._clock.boot_ms())
            if caught and caught.si_signo == signal.SIGHUP:
                self._to_roll = [child for child in self._children if child.cpu is not None]
            stopping = caught is not None and caught.si_signo in (signal.SIGTERM, signal.SIGINT)
        self._drain()
        return 0

    def _start_what_is_due(self, now_ms: int) -> None:
        for child in self._children:
            if child.pid == 0 and child.start_at_ms <= now_ms:
                child.pid = self._fork(child)
                child.started_ms = now_ms
                self._events.emit("child.started", child=child.name, pid=child.pid)

    def _fork(self, child: Child) -> int:
        return fork_child(
            partial(run_child, child, self._settings, self._board),
            lambda error: self._events.emit("stage.failed", stage=child.name, error=error),
        )

    def _wait_ms(self, now_ms: int) -> int:
        waits = [child.start_at_ms - now_ms for child in self._children if child.pid == 0]
        if self._to_roll:
            waits.append(ROLL_PAUSE_MS // 4)
        return max(1, min(waits, default=60_000))

    def _collect(self, now_ms: int) -> None:
        """Take note of every child that has ended; it starts again after its pause."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._ended(child, status, now_ms)

    def _ended(self, child: Child, status: int, now_ms: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self._events.emit("child.ended", child=child.name, pid=child.pid, code=code)
        self._board.clear(child.slot)
        lived_well = now_ms - child.started_ms >= LIVED_WELL_MS or code == 0
        child.pause_ms = RESTART_PAUSE_MS if lived_well else min(2 * child.pause_ms, RESTART_PAUSE_MS_MAX)
        child.start_at_ms = now_ms + child.pause_ms
        child.pid = 0

    def _roll(self, now_ms: int) -> None:
        """Restart the executors one by one: each hands over, and the next one waits until it is back."""
        if not self._to_roll or now_ms < self._roll_at_ms or any(child.pid == 0 for child in self._children):
            return
        states = self._board.read()
        if any(not states[child.slot] for child in self._children):
            return
        child = self._to_roll.pop(0)
        self._roll_at_ms = now_ms + ROLL_PAUSE_MS
        os.kill(child.pid, signal.SIGTERM)

    def _drain(self) -> None:
        """Executors hand over first; the keeper and the recorder go last."""
        executors = [child for child in self._children if child.cpu is not None]
        self._end(executors)
        self._end([child for child in self._children if child.cpu is None])
        self._events.emit("node.stopped")

    def _end(self, children: list[Child]) -> None:
        deadline_ms = self._clock.boot_ms() + DRAIN_MS_MAX
        for child in children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
        while any(child.pid for child in children) and self._clock.boot_ms() < deadline_ms:
            signal.sigtimedwait(_SIGNALS, 0.1)
            self._collect(self._clock.boot_ms())
        for child in children:
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)


def run_child(child: Child, settings: Settings, board: Board) -> None:
    """The body of a forked child: its own signal mask, core, loop and clock."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if child.cpu is not None:
        os.sched_setaffinity(0, {child.cpu})
    calm_collector()
    events = Events()
    metrics = Metrics()
    events.subscribe(metrics)
    events.subscribe(LogSubscriber(child.name, settings.log_level))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(child, settings, board, events, metrics))


async def _until_told(child: Child, settings: Settings, board: Board, events: Events, metrics: Metrics) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    seat = Seat(child.name, board, child.slot, events, metrics, SystemClock())
    await _kind(child)(settings, seat).run(stop)


def _kind(child: Child) -> type[Executor] | type[Keeper] | type[Recorder]:
    if child.name != "recorder":
        return Keeper if child.cpu is None else Executor
    from engine.recorder import Recorder  # the driver of Cassandra is loaded where it is used and nowhere else

    return Recorder
