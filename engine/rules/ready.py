"""The order in which due runs are fired: weighted by priority, fair between tenants, bounded per origin.

Each priority holds a ring of tenants, each tenant a ring of lanes (one per origin), each lane its runs in order. A lane
with as many calls in flight as it may have leaves the rings until one of them ends, so that an endpoint which hangs
holds up nobody but itself. Runs that are late already are a class of their own: those on time keep half of the starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from engine.model import Priority

# Of 15 starts under full load: 8 critical, 4 high, 2 normal, 1 low. Low never starves.
WEIGHTS: dict[int, int] = {Priority.CRITICAL: 8, Priority.HIGH: 4, Priority.NORMAL: 2, Priority.LOW: 1}

# A run this late when it becomes ready belongs to the class of late runs.
LATE_MS = 60_000

T = TypeVar("T")


class StartOrder(Generic[T]):
    """Two ready queues, for runs on time and for late ones; while both have work they take turns.

    ``in_flight_max`` bounds all calls; late ones may have half of that, so that those on time always find room.
    """

    def __init__(self, lane_in_flight_max: int, in_flight_max: int) -> None:
        self._queues = {late: ReadyQueue[T](lane_in_flight_max) for late in (False, True)}
        self._in_flight = {False: 0, True: 0}
        self._in_flight_max = in_flight_max
        self._late_turn = False

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        return self._in_flight[False] + self._in_flight[True]

    def push(self, item: T, priority: int, tenant_id: int, origin: Hashable, *, late: bool, now_ms: int) -> None:
        self._queues[late].push(item, priority, tenant_id, origin, now_ms)

    def pop(self) -> tuple[T, bool] | None:
        """The next to start and whether it is of the late class, or None; tell ``done`` when it has ended."""
        if self.in_flight >= self._in_flight_max:
            return None
        first = self._late_turn
        for late in (first, not first):
            if late and self._in_flight[True] >= self._in_flight_max // 2:
                continue
            item = self._queues[late].pop()
            if item is not None:
                self._late_turn = not late
                self._in_flight[late] += 1
                return item, late
        return None

    def done(self, tenant_id: int, origin: Hashable, *, late: bool) -> None:
        """A started one has ended."""
        self._in_flight[late] -= 1
        self._queues[late].done(tenant_id, origin)

    def held_since(self, before_ms: int) -> list[T]:
        """Takes out what has been ready since then and waits for its own lane alone, not for this executor."""
        return [item for queue in self._queues.values() for item in queue.held_since(before_ms)]


class Lane(Generic[T]):
    """One tenant's runs to one origin."""

    __slots__ = ("in_flight", "in_flight_max", "queues", "ringed", "tenant_id")

    def __init__(self, tenant_id: int, in_flight_max: int) -> None:
        self.tenant_id = tenant_id
        self.in_flight = 0
        self.in_flight_max = in_flight_max
        self.queues: dict[int, deque[tuple[T, int]]] = {priority: deque() for priority in Priority}
        self.ringed: set[int] = set()

    @property
    def idle(self) -> bool:
        return self.in_flight == 0 and not any(self.queues.values())


class ReadyQueue(Generic[T]):
    """``push`` what is due, ``pop`` what may start now, tell ``done`` when a started one has ended."""

    def __init__(self, lane_in_flight_max: int) -> None:
        self._lane_in_flight_max = lane_in_flight_max
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._tenants: dict[int, deque[int]] = {priority: deque() for priority in Priority}
        self._rings: dict[tuple[int, int], deque[Lane[T]]] = {}
        self._credit = dict(WEIGHTS)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, item: T, priority: int, tenant_id: int, origin: Hashable, now_ms: int) -> None:
        lane = self._lanes.get((tenant_id, origin))
        if lane is None:
            lane = self._lanes[tenant_id, origin] = Lane(tenant_id, self._lane_in_flight_max)
        lane.queues[priority].append((item, now_ms))
        self._size += 1
        self._ring(lane, priority)

    def pop(self) -> T | None:
        """The next to start, or None if nothing may start now; the caller starts it and tells ``done`` later."""
        priority = self._next_priority()
        if priority is None:
            return None
        tenants = self._tenants[priority]
        tenant_id = tenants[0]
        lanes = self._rings[priority, tenant_id]
        lane = lanes[0]
        queue = lane.queues[priority]
        item, _ = queue.popleft()
        self._size -= 1
        lane.in_flight += 1
        if lane.in_flight >= lane.in_flight_max:
            self._unring(lane)
        elif not queue:
            self._unring_one(lane, priority)
        else:
            lanes.rotate(-1)
        if tenants and tenants[0] == tenant_id:
            tenants.rotate(-1)
        return item

    def done(self, tenant_id: int, origin: Hashable) -> None:
        """A started one has ended: its lane may start another."""
        lane = self._lanes[tenant_id, origin]
        lane.in_flight -= 1
        for priority, queue in lane.queues.items():
            if queue:
                self._ring(lane, priority)
        if lane.idle:
            del self._lanes[tenant_id, origin]

    def held_since(self, before_ms: int) -> list[T]:
        """Takes out what has been ready since then in lanes that have all the calls in flight that they may have."""
        held: list[T] = []
        for lane in self._lanes.values():
            if lane.in_flight >= lane.in_flight_max:
                for queue in lane.queues.values():
                    while queue and queue[0][1] <= before_ms:
                        held.append(queue.popleft()[0])
        self._size -= len(held)
        return held

    def _next_priority(self) -> int | None:
        """Smooth by credit: the highest priority with credit left; when none has any, all are credited again."""
        highest = None
        for priority, tenants in self._tenants.items():
            if tenants:
                if self._credit[priority] > 0:
                    self._credit[priority] -= 1
                    return priority
                if highest is None:
                    highest = priority
        if highest is not None:
            self._credit = dict(WEIGHTS)
            self._credit[highest] -= 1
        return highest

    def _ring(self, lane: Lane[T], priority: int) -> None:
        if priority in lane.ringed or lane.in_flight >= lane.in_flight_max:
            return
        lane.ringed.add(priority)
        ring = self._rings.get((priority, lane.tenant_id))
        if ring is None:
            ring = self._rings[priority, lane.tenant_id] = deque()
            self._tenants[priority].append(lane.tenant_id)
        ring.append(lane)

    def _unring(self, lane: Lane[T]) -> None:
        for priority in tuple(lane.ringed):
            self._unring_one(lane, priority)

    def _unring_one(self, lane: Lane[T], priority: int) -> None:
        lane.ringed.discard(priority)
        ring = self._rings[priority, lane.tenant_id]
        ring.remove(lane)
        if not ring:
            del self._rings[priority, lane.tenant_id]
            self._tenants[priority].remove(lane.tenant_id)
