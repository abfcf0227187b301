"""The order in which due runs are fired: weighted by priority, fair between tenants, bounded per origin.

Each priority holds a ring of tenants, each tenant a ring of lanes (one per origin), each lane its runs in order. A lane
with as many calls in flight as it may have leaves the rings until one of them ends, so that an endpoint which hangs
holds up nobody but itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from engine.model import Priority

# Of 15 starts under full load: 8 critical, 4 high, 2 normal, 1 low. Low never starves.
WEIGHTS = {Priority.CRITICAL: 8, Priority.HIGH: 4, Priority.NORMAL: 2, Priority.LOW: 1}

T = TypeVar("T")


class Lane(Generic[T]):
    """One tenant's runs to one origin."""

    __slots__ = ("in_flight", "in_flight_max", "queues", "ringed", "tenant_id")

    def __init__(self, tenant_id: int, in_flight_max: int) -> None:
        self.tenant_id = tenant_id
        self.in_flight = 0
        self.in_flight_max = in_flight_max
        self.queues: dict[int, deque[T]] = {priority: deque() for priority in Priority}
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

    def push(self, item: T, priority: int, tenant_id: int, origin: Hashable) -> None:
        lane = self._lanes.get((tenant_id, origin))
        if lane is None:
            lane = self._lanes[tenant_id, origin] = Lane(tenant_id, self._lane_in_flight_max)
        lane.queues[priority].append(item)
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
        item = queue.popleft()
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

    def _next_priority(self) -> int | None:
        """Smooth by credit: the highest priority with credit left; when none has any, all are credited again."""
        waiting = [priority for priority, tenants in self._tenants.items() if tenants]
        if not waiting:
            return None
        for priority in waiting:
            if self._credit[Priority(priority)] > 0:
                self._credit[Priority(priority)] -= 1
                return priority
        self._credit = dict(WEIGHTS)
        self._credit[Priority(waiting[0])] -= 1
        return waiting[0]

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
