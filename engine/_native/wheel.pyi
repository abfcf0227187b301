"""The timing wheel. Times are whole milliseconds from 0 to 2**63 - 1; what they count from is the caller's choice."""

from array import array
from collections.abc import Sequence
from typing import Generic, TypeVar

ABI: int

T = TypeVar("T")

class Wheel(Generic[T]):
    """Items waiting for their millisecond.

    A payload that refers back to the wheel keeps both alive (the garbage collector does not look inside).
    Not for use from several threads at once.
    """

    now_ms: int
    """The latest time it was advanced to; it never goes back."""

    def __init__(self, now_ms: int) -> None: ...
    def __len__(self) -> int:
        """How many entries wait."""

    def add(self, due_ms: int, item: T) -> int:
        """One entry; its handle is a positive int that is never given to another entry of this wheel."""

    def add_many(self, due_ms: Sequence[int], items: list[T]) -> array[int]:
        """A batch, all of it or nothing; handles in the same order.

        ValueError for lengths that differ or a negative time, TypeError for a time that is no int.
        """

    def cancel(self, handle: int) -> T | None:
        """The item, which now never comes; None when it came, was cancelled, or never was."""

    def advance(self, now_ms: int) -> list[T]:
        """Every item with ``due_ms <= now_ms``, in order of due time and then of adding.

        Items that were past when they were added come first, in order of adding. Where ``now_ms`` is less than before,
        the wheel stays where it is, and an item added since is still not given out before ``now_ms`` reaches it.
        """

    def next_due_ms(self) -> int:
        """A time before which ``advance`` gives nothing, -1 when there is nothing to wait for.

        Exact within the current 256 ms, else the start of the block that comes next: whoever sleeps until then and
        advances is told the next one, and comes to the item in at most eight steps.
        """

    def clear(self) -> list[T]:
        """Takes everything out, in no order; all handles become stale."""

    def wear_out(self) -> None:
        """For tests: as if every free node had been used two thousand million times."""

    def check_invariants(self) -> None:
        """For tests: AssertionError if rings, bits, places and counts do not agree."""
