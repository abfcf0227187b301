"""The runs this worker holds: claimed in MySQL, waiting in the wheel for their second, keyed by (run, attempt)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from engine._native.wheel import Wheel
from engine.model import RunKey
from engine.outbound.exchange import Request
from engine.stages.versions import CallPlan

# Heads are built and connections opened from this long before the second on, each run at its own moment of the first
# PREPARE_SPREAD_MS, so that preparing a burst never holds up the seconds before it.
PREPARE_MS = 3_000
PREPARE_SPREAD_MS = 2_000

# One in so many places is kept for runs that are claimed when they are due.
KEPT_PART = 8

# Signals remembered for runs that are not held (yet): the last so many, some 200 bytes each.
FORETOLD_MAX = 20_000


class HeldRun:
    """One claimed run. ``due_ms`` is its second, or a later moment for a retry; ``key`` is its place in the table; one
    that is ``late`` gives way to those on time, and one that was ``held`` by a limit of its own is not told as late."""

    __slots__ = (
        "abandoned",
        "attempt",
        "call",
        "cancelled",
        "decided",
        "deferred",
        "demoted",
        "due_ms",
        "handle",
        "held",
        "in_flight",
        "key",
        "late",
        "lease_until_ms",
        "overlap",
        "priority",
        "request",
        "shard_index",
        "tenant_id",
        "tries",
        "version",
        "worker_id",
    )

    def __init__(
        self,
        key: RunKey,
        *,
        worker_id: int,
        attempt: int,
        tries: int,
        tenant_id: int,
        version: int,
        priority: int,
        due_ms: int,
        lease_until_ms: int,
        deferred: bool,
        overlap: bool,
        call: CallPlan,
        shard_index: int,
        late: bool = False,
        held: bool = False,
    ) -> None:
        self.key = key
        self.worker_id = worker_id
        self.attempt = attempt
        self.tries = tries
        self.tenant_id = tenant_id
        self.version = version
        self.priority = priority
        self.due_ms = due_ms
        self.lease_until_ms = lease_until_ms
        self.deferred = deferred
        self.overlap = overlap
        self.call = call
        self.shard_index = shard_index
        self.request: Request | None = None
        self.handle = 0
        self.in_flight = False
        # How it ended, or that it goes back, waits to be written: nothing else may be made of it.
        self.decided = False
        self.cancelled = False
        self.abandoned = False
        self.demoted = False
        self.late = late
        self.held = held

    @property
    def identity(self) -> tuple[RunKey, int]:
        return self.key, self.attempt


class HeldRuns:
    """A bounded set of held runs and the wheel that releases them, first to be prepared, then to be fired."""

    def __init__(self, now_ms: int, runs_max: int) -> None:
        self._wheel: Wheel[HeldRun] = Wheel(now_ms)
        self._runs: dict[tuple[RunKey, int], HeldRun] = {}
        self._runs_max = runs_max
        self._emptied = asyncio.Event()
        self._foretold: dict[tuple[RunKey, int], None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def room(self) -> int:
        """How many more runs may be claimed."""
        return max(0, self._runs_max - len(self._runs))

    def room_ahead(self) -> int:
        """How many more may be planned ahead: a part is kept for what is due now, whoever's runs fill the rest."""
        return max(0, self.room() - self._runs_max // KEPT_PART)

    def add(self, runs: Sequence[HeldRun]) -> None:
        """Hold these; each comes out of ``advance`` to be prepared, or at once if the moment for that is past."""
        handles = self._wheel.add_many([_prepare_at_ms(run) for run in runs], list(runs))
        for run, handle in zip(runs, handles, strict=True):
            run.handle = handle
            self._runs[run.identity] = run

    def again(self, run: HeldRun, at_ms: int) -> None:
        """It comes out of ``advance`` once more, at this moment."""
        run.handle = self._wheel.add(at_ms, run)

    def advance(self, now_ms: int) -> list[HeldRun]:
        """Runs whose moment has come, in its order."""
        return self._wheel.advance(now_ms)

    def next_ms(self) -> int:
        """When ``advance`` has something to do again; -1 if nothing is held."""
        return self._wheel.next_due_ms()

    def find(self, key: RunKey, attempt: int) -> HeldRun | None:
        return self._runs.get((key, attempt))

    def foretell(self, key: RunKey, attempt: int) -> None:
        """A signal came for a run that is not held: it has ended, or the answer to its claim is still on its way."""
        self._foretold[key, attempt] = None
        if len(self._foretold) > FORETOLD_MAX:
            del self._foretold[next(iter(self._foretold))]

    def was_foretold(self, run: HeldRun) -> bool:
        return run.identity in self._foretold

    def remove(self, run: HeldRun) -> None:
        """Let go of it, wherever it is."""
        self._wheel.cancel(run.handle)
        self._runs.pop(run.identity, None)
        if not self._runs:
            self._emptied.set()

    async def empty(self) -> None:
        """Return once nothing is held."""
        while self._runs:
            self._emptied.clear()
            await self._emptied.wait()

    def unfired(self) -> Iterable[HeldRun]:
        """Held runs whose call has not begun, and of which nothing has been decided."""
        return [run for run in self._runs.values() if not run.in_flight and not run.decided]


def _prepare_at_ms(run: HeldRun) -> int:
    """The low bits of a job id are random, so they spread a burst evenly."""
    return run.due_ms - PREPARE_MS + run.key.job_id % PREPARE_SPREAD_MS
