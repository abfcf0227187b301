"""Turns between the tenants of one class of due work, where a batch cannot hold all that is due.

A batch is read in the order of an index, so a tenant with thousands due in a second would fill one after the other. So
whoever holds much of a full batch is *loud*, and what waits behind the loud ones is looked for: one step past them in
the index, no more often than what it takes allows. What is found has its even share of the next batches. Where nothing
waits behind them, or where there is room for all, this does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Generic, TypeVar

# Who holds at least this part of a full batch is loud, so no more than this are at a time.
LOUD_PART = 16

# Looking takes at most this part of the time; where nothing was found, it is done again no sooner than this.
LOOK_PART = 10
FRUITLESS_LOOK_PART = 50
FRUITLESS_PAUSE_MS = 500

T = TypeVar("T")


def loud_of(tenants: Iterable[int], rows: int) -> list[int]:
    """The tenants, one for each row of a batch of so many, that hold much of it."""
    return sorted(tenant for tenant, count in Counter(tenants).items() if count * LOUD_PART >= rows)


def by_turns(items: Sequence[T], tenant_of: Callable[[T], int]) -> list[T]:
    """One of each tenant in turn, each tenant's in their own order."""
    of_tenants: dict[int, list[T]] = {}
    for item in items:
        of_tenants.setdefault(tenant_of(item), []).append(item)
    if len(of_tenants) < 2:
        return list(items)
    missing = object()
    rounds = zip_longest(*of_tenants.values(), fillvalue=missing)
    return [item for item in chain.from_iterable(rounds) if item is not missing]  # type: ignore[misc]


class Turns(Generic[T]):
    """Of one class: who is loud, and what of the others has been found and waits for its turn."""

    def __init__(self, tenant_of: Callable[[T], int]) -> None:
        self._tenant_of = tenant_of
        self.loud: list[int] = []
        self._waiting: list[T] = []
        self._look_at_ms = 0

    def read(self, tenants: Sequence[int], rows_max: int) -> None:
        """What a read of the class in the order of its index gave, one tenant for each row."""
        self.loud = loud_of(tenants, rows_max) if tenants and len(tenants) >= rows_max else []
        if not self.loud:
            self._waiting.clear()

    def looks(self, now_ms: int) -> bool:
        """Whether it is time to look for what waits behind the loud ones."""
        return bool(self.loud) and not self._waiting and now_ms >= self._look_at_ms

    def found(self, items: Sequence[T], took_ms: int, now_ms: int) -> None:
        """What a look gave, those of each tenant by turns, and how long it took."""
        self._waiting = list(items)
        pause_ms = LOOK_PART * took_ms if items else max(FRUITLESS_PAUSE_MS, FRUITLESS_LOOK_PART * took_ms)
        self._look_at_ms = now_ms + pause_ms

    def share(self, rows: int) -> int:
        """How much of a batch is the others' by even shares between all tenants."""
        others = len(set(map(self._tenant_of, self._waiting)))
        return rows * others // (others + len(self.loud)) if others else 0

    def take(self, items_max: int) -> list[T]:
        """The next of what was found; they are not given again until they are found again."""
        taken, self._waiting = self._waiting[:items_max], self._waiting[items_max:]
        return taken
