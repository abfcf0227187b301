"""The hub of one process: workers that wait for work share one look at each shard, four times a second.

A look asks when the first run of each lane that is waited for is due; so the moment of a run that is planned already is
known before, and its worker gets it at once. Who asks anew for what a look has just found empty waits for the next
one, so that a thousand workers that wait cost no more statements than one. A claim is shared as well: what several
workers can have is claimed in one transaction for each shard.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from itertools import chain, zip_longest
from typing import Any, NamedTuple, TypeVar

from engine.clock import Clock
from engine.errors import Conflict, StoreUnavailable
from engine.events import Events
from engine.model import RunKey
from engine.rules.lanes import workers_lane
from engine.rules.turns import Turns
from engine.service import Service
from engine.stages.held import HeldRun
from engine.stages.work import Candidate, Claimed, Class, Work
from engine.store.brakes import Brakes

LOOK_MS = 250

# Where more is due than could be claimed, a round waits for workers as long as more of them come to ask: a batch at
# once would always be a batch of few.
LINGER_STEP_S = 0.001
LINGER_STEPS = 5

# A shard that takes longer than this to answer a look holds up no other.
SHARD_WAIT_S = 0.25

# Runs claimed in one round, and classes that are asked for candidates in one round trip.
CLAIM_RUNS_MAX = 500
CLAIM_CLASSES_MAX = 64

# Lanes remembered as empty: some 100 bytes each.
EMPTY_LANES_MAX = 100_000

T = TypeVar("T")

FunctionKey = tuple[int, str]
"""A tenant and the name of a function of his."""


class Found(NamedTuple):
    """A run that is due, where it was found."""

    work: Work
    candidate: Candidate
    function: FunctionKey


class Seen(NamedTuple):
    """What a look at a shard has found: when each class of the lanes that were asked for is due."""

    boot_ms: int
    lanes: Set[int]
    dues: dict[Class, int]


class Waiter:
    """One worker that asks: how many runs of which functions it can take, and what it has got."""

    __slots__ = ("accepting", "claimed", "done", "functions", "gone", "patient", "reserved", "room", "unseen")

    def __init__(self, functions: Sequence[FunctionKey], room: int, patient: bool, works: Sequence[Work]) -> None:
        self.functions = functions
        self.room = room
        self.patient = patient
        self.unseen = set(works)
        self.reserved = 0
        self.claimed: list[Claimed] = []
        self.accepting = True
        self.gone = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        """It is answered once nothing more is on its way and there is something, or no reason to wait."""
        enough = bool(self.claimed) or not self.accepting or not (self.unseen or self.patient)
        if self.reserved == 0 and enough and not self.done.done():
            self.accepting = False
            self.done.set_result(None)


class Hub:
    """All workers that wait in this process."""

    def __init__(self, works: Sequence[Work], brakes: Brakes, clock: Clock, events: Events) -> None:
        self._works = works
        self._brakes = brakes
        self._clock = clock
        self._events = events
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._queues: dict[FunctionKey, OrderedDict[Waiter, None]] = defaultdict(OrderedDict)
        self._empty_boot_ms: OrderedDict[int, int] = OrderedDict()
        self._seen: dict[Work, Seen] = {}
        self._turns = Turns()
        self._claiming: set[Work] = set()
        self._slow: set[Work] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._returned: list[HeldRun] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._stopping = False
        self._loop = Service("work", self.run_once, LOOK_MS, clock, events)

    def __len__(self) -> int:
        """How many workers wait."""
        return len(self._waiters)

    @property
    def functions(self) -> list[FunctionKey]:
        """What they wait for."""
        return list(self._queues)

    def start(self) -> None:
        self._loop.start()

    def stop_waiting(self) -> None:
        """Everyone gets an answer now: this process ends."""
        self._stopping = True
        for waiter in list(self._waiters):
            self._leave(waiter)

    async def stop(self) -> None:
        self.stop_waiting()
        await self._loop.stop()
        for timer in (self._timer, self._lingering):
            if timer is not None:
                timer.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._give_back_returned()

    def nudge(self) -> None:
        """Something was put that may be due at once."""
        if self._waiters:
            self._empty_boot_ms.clear()
            self._seen.clear()
            self._loop.wake()

    async def claim(
        self, functions: Sequence[FunctionKey], room: int, wait_ms: int, left: Callable[[], Awaitable[object]]
    ) -> list[Claimed]:
        """At most ``room`` runs as soon as there is one, none after the wait. ``left`` returns once the asker has gone:
        then what was claimed for it goes back."""
        if self._stopping:
            return []
        waiter = Waiter(functions, room, wait_ms > 0, self._works)
        self._enter(waiter)
        try:
            if waiter.patient:
                await self._wait(waiter, wait_ms, left)
            await asyncio.shield(waiter.done)
        except asyncio.CancelledError:
            waiter.gone = True
            raise
        finally:
            self._leave(waiter)
            if waiter.gone:
                self._returned += [each.run for each in waiter.claimed]
                waiter.claimed = []
        return waiter.claimed

    async def _wait(self, waiter: Waiter, wait_ms: int, left: Callable[[], Awaitable[object]]) -> None:
        leaving = asyncio.ensure_future(left())
        try:
            both = (waiter.done, leaving)
            await asyncio.wait(both, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            waiter.gone = leaving.done()
        finally:
            leaving.cancel()
            self._leave(waiter)

    def _enter(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None
        self._queue(waiter)
        if not waiter.patient or not self._known_empty(waiter):
            self._wake()

    def _wake(self) -> None:
        """Look, at once or together with those who ask in the next moment."""
        if not self._seen:
            self._loop.wake()
        elif self._lingering is None:
            self._linger(LINGER_STEPS, len(self._waiters))

    def _linger(self, steps: int, waiters: int) -> None:
        """As long as more of them come."""
        self._lingering = asyncio.get_running_loop().call_later(LINGER_STEP_S, self._lingered, steps - 1, waiters)

    def _lingered(self, steps: int, waiters: int) -> None:
        self._lingering = None
        if steps and len(self._waiters) > waiters:
            self._linger(steps, len(self._waiters))
        else:
            self._loop.wake()

    def _queue(self, waiter: Waiter) -> None:
        for function in waiter.functions:
            self._queues[function][waiter] = None

    def _unqueue(self, waiter: Waiter) -> None:
        for function in waiter.functions:
            queue = self._queues.get(function)
            if queue is not None:
                queue.pop(waiter, None)
                if not queue:
                    del self._queues[function]

    def _known_empty(self, waiter: Waiter) -> bool:
        """A look of a moment ago has found nothing for it."""
        since = self._clock.boot_ms() - LOOK_MS
        return all(self._empty_boot_ms.get(workers_lane(*function), -1) >= since for function in waiter.functions)

    def _leave(self, waiter: Waiter) -> None:
        """Nothing more for it; it is answered once what is reserved for it is decided."""
        waiter.accepting = False
        self._waiters.pop(waiter, None)
        self._unqueue(waiter)
        waiter.settle()

    async def run_once(self, now_ms: int) -> bool:
        """One round for all who wait: look, choose, and begin to claim."""
        await self._give_back_returned()
        stops = self._brakes.in_force.stops
        wanted = {workers_lane(*function): function for function in self._queues if not stops(function[0])}
        asking = [waiter for waiter in self._waiters if waiter.unseen]
        if not wanted:
            for waiter in asking:  # of tenants that an operator has stopped: there is nothing for them
                waiter.unseen.clear()
                waiter.settle()
            return False
        looked = [work for work in self._works if work not in self._claiming]
        ahead = await self._look(looked, wanted, hurried=not all(waiter.patient for waiter in asking))
        now_ms = self._clock.now_ms()
        for work, picks in self._assign(await self._find(ahead, wanted, now_ms)).items():
            self._claiming.add(work)
            self._begin(self._claim(work, picks), work)
        for waiter in asking:
            waiter.unseen.difference_update(looked)
            waiter.settle()
        self._come_back(ahead.values(), now_ms)
        return False

    async def _look(
        self, works: Iterable[Work], wanted: Mapping[int, FunctionKey], hurried: bool
    ) -> dict[Work, Mapping[Class, int]]:
        """When what is wanted is due on each shard. Where more was due a moment ago than could be claimed, that is not
        asked again, unless somebody does not wait for the next look."""
        boot_ms = self._clock.boot_ms()
        ahead: dict[Work, Mapping[Class, int]] = {}
        for work in works:
            seen = self._seen.get(work)
            fresh = seen is not None and seen.boot_ms > boot_ms - LOOK_MS and seen.lanes >= wanted.keys()
            if seen is not None and fresh and not hurried:
                ahead[work] = seen.dues
        looked = await self._ask(
            {work: work.look(sorted(wanted)) for work in works if work not in ahead and work not in self._slow}
        )
        now_ms = self._clock.now_ms()
        if len(looked) == len(self._works):
            self._note_empty(wanted, looked.values(), now_ms)
        self._seen |= {
            work: Seen(boot_ms, wanted.keys(), dues)
            for work, dues in looked.items()
            if any(at_ms <= now_ms for at_ms in dues.values())
        }
        return ahead | looked

    async def _find(
        self, ahead: Mapping[Work, Mapping[Class, int]], wanted: Mapping[int, FunctionKey], now_ms: int
    ) -> list[Found]:
        """What is due, of the most urgent classes of each shard."""
        room = max(1, min(CLAIM_RUNS_MAX, sum(waiter.room for waiter in self._waiters)))
        questions = {}
        for work, dues in ahead.items():
            due = sorted((each.priority, at_ms, each) for each, at_ms in dues.items() if at_ms <= now_ms)
            if due:
                questions[work] = work.candidates([each for _, _, each in due[:CLAIM_CLASSES_MAX]], room)
        answers = await self._ask(questions)
        for work, candidates in answers.items():
            self._forget_exhausted(work, candidates, room, now_ms)
        return [
            Found(work, candidate, wanted[candidate.lane])
            for work, candidates in answers.items()
            for candidate in candidates
        ]

    def _forget_exhausted(self, work: Work, candidates: Sequence[Candidate], room: int, now_ms: int) -> None:
        """Unless each class that is due had as many as could be claimed, the next round looks anew."""
        found = Counter(Class(candidate.lane, candidate.priority) for candidate in candidates)
        seen = self._seen.get(work)
        if seen is not None and any(found[each] < room for each, at_ms in seen.dues.items() if at_ms <= now_ms):
            del self._seen[work]

    def _assign(self, found: Sequence[Found]) -> dict[Work, dict[RunKey, Waiter]]:
        """Who gets what: of each tenant by priority, tenants in turn, up to the bound of a round."""
        by_tenant: dict[int, list[Found]] = defaultdict(list)
        for each in found:
            by_tenant[each.function[0]].append(each)
        ordered = [
            self._turns.order(tenant_id, mine, _priority, _due_ms)
            for tenant_id, mine in by_tenant.items()
        ]
        picks: dict[Work, dict[RunKey, Waiter]] = defaultdict(dict)
        left = CLAIM_RUNS_MAX
        for each in chain.from_iterable(zip_longest(*ordered)):
            waiter = None if each is None else self._first_waiter(each.function)
            if waiter is None or left == 0:
                continue
            left -= 1
            picks[each.work][each.candidate.key] = waiter
            self._turns.took(each.function[0])
            waiter.reserved += 1
            waiter.room -= 1
            if waiter.room == 0:
                self._unqueue(waiter)
        return picks

    def _first_waiter(self, function: FunctionKey) -> Waiter | None:
        queue = self._queues.get(function)
        return next(iter(queue)) if queue else None

    async def _claim(self, work: Work, picks: Mapping[RunKey, Waiter]) -> None:
        claimed: list[Claimed] = []
        try:
            await work.give_back_unknown()
            wanted = {function for waiter in picks.values() for function in waiter.functions}
            claimed = await work.claim(picks, wanted)
        except (StoreUnavailable, Conflict) as error:
            self._events.emit("stage.unavailable", stage="work", error=str(error))
        except Exception as error:
            self._events.emit("stage.failed", stage="work", error=error)
        finally:
            self._claiming.discard(work)
            self._hand_over(picks, claimed)
        if claimed and self._queues:
            self._wake()

    def _hand_over(self, picks: Mapping[RunKey, Waiter], claimed: Sequence[Claimed]) -> None:
        """Each worker gets what was claimed for it; what others had first leaves it room for more."""
        got = {each.run.key: each for each in claimed}
        for key, waiter in picks.items():
            waiter.reserved -= 1
            each = got.get(key)
            if each is None:
                waiter.room += 1
                if waiter.accepting:
                    self._queue(waiter)
            elif waiter.gone:
                self._returned.append(each.run)
            else:
                waiter.claimed.append(each)
        for waiter in dict.fromkeys(picks.values()):
            waiter.settle()
            if waiter.done.done():
                self._leave(waiter)

    async def _ask(self, questions: Mapping[Work, Coroutine[Any, Any, T]]) -> dict[Work, T]:
        """Each shard's answer, of those that give one in time; a slow one is asked nothing else meanwhile."""
        tasks = {work: self._begin(question, work) for work, question in questions.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=SHARD_WAIT_S)
        self._slow |= {work for work, task in tasks.items() if not task.done()}
        return {work: task.result() for work, task in tasks.items() if task.done() and self._ended_well(task)}

    def _begin(self, coroutine: Coroutine[Any, Any, T], work: Work) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._done(task, work))
        return task

    def _done(self, task: asyncio.Task[Any], work: Work) -> None:
        self._tasks.discard(task)
        if work in self._slow:
            self._slow.discard(work)
            self._ended_well(task)

    def _ended_well(self, task: asyncio.Task[Any]) -> bool:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreUnavailable | Conflict):
            self._events.emit("stage.unavailable", stage="work", error=str(error))
        elif error is not None:
            self._events.emit("stage.failed", stage="work", error=error)
        return error is None and not task.cancelled()

    def _note_empty(
        self, wanted: Mapping[int, FunctionKey], ahead: Iterable[Mapping[Class, int]], now_ms: int
    ) -> None:
        due = {each.lane for dues in ahead for each, at_ms in dues.items() if at_ms <= now_ms}
        boot_ms = self._clock.boot_ms()
        for lane in wanted:
            self._empty_boot_ms.pop(lane, None)
            if lane not in due:
                self._empty_boot_ms[lane] = boot_ms
        while len(self._empty_boot_ms) > EMPTY_LANES_MAX:
            self._empty_boot_ms.popitem(last=False)

    def _come_back(self, ahead: Iterable[Mapping[Class, int]], now_ms: int) -> None:
        """At the moment of the first run that is known of, if it comes before the next look."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        coming = [at_ms for dues in ahead for at_ms in dues.values() if now_ms < at_ms < now_ms + LOOK_MS]
        if coming:
            self._timer = asyncio.get_running_loop().call_later((min(coming) - now_ms) / 1000, self._loop.wake)

    async def _give_back_returned(self) -> None:
        """What was claimed for workers that left before they heard of it."""
        while self._returned:
            first = self._returned[0]
            work = next(work for work in self._works if work.shard.index == first.shard_index)
            runs = [run for run in self._returned if run.shard_index == first.shard_index]
            self._returned = [run for run in self._returned if run.shard_index != first.shard_index]
            try:
                await work.give_back(runs)
            except (StoreUnavailable, Conflict) as error:
                # Nobody renews them: they are taken back when their leases are over.
                self._events.emit("stage.unavailable", stage="work", error=str(error))


def _priority(found: Found) -> int:
    return found.candidate.priority


def _due_ms(found: Found) -> int:
    return found.candidate.due_at_ms
