"""In which order a tenant's due function runs go to its workers: by priority, and low never starves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

# One of so many runs is the one that has waited longest, whatever its priority: the share that calls of low priority
# have, too.
OLDEST_EVERY = 15

# Tenants whose count goes on; one that is forgotten begins a new one.
TENANTS_MAX = 50_000

T = TypeVar("T")


class Turns:
    """Counts the runs of each tenant, so that the oldest has its turn whoever asks for how many."""

    def __init__(self) -> None:
        self._taken: OrderedDict[int, int] = OrderedDict()

    def took(self, tenant_id: int) -> None:
        """One more of its runs has been given away."""
        self._taken[tenant_id] = self._taken.pop(tenant_id, 0) + 1
        if len(self._taken) > TENANTS_MAX:
            self._taken.popitem(last=False)

    def order(
        self, tenant_id: int, items: Sequence[T], priority: Callable[[T], int], due_ms: Callable[[T], int]
    ) -> Iterator[T]:
        """The tenant's items in the order in which they are to be given away, if all of them are."""
        by_priority = iter(sorted(items, key=lambda item: (priority(item), due_ms(item))))
        by_age = iter(sorted(items, key=due_ms))
        given: set[int] = set()
        taken = self._taken.get(tenant_id, 0)
        for place in range(len(items)):
            ranked = by_age if (taken + place) % OLDEST_EVERY == OLDEST_EVERY - 1 else by_priority
            item = next(item for item in ranked if id(item) not in given)
            given.add(id(item))
            yield item
