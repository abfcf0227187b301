"""Errors, sorted by who must act: the caller, the operator, or us. Outcomes of calls are values, not errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a caller's input: where (JSON pointer), what, and an example that works."""

    pointer: str
    detail: str
    example: str | None = None

    def __str__(self) -> str:
        return f"{self.pointer}: {self.detail}" + (f"; for example {self.example}" if self.example else "")


class CallerError(Exception):
    """The caller must change the input; carries every fault found, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__("; ".join(f"{fault.pointer or 'input'}: {fault.detail}" for fault in self.faults))


class OperatorError(Exception):
    """The operator must act: a setting, a server, a disk. The message is one line: expected, found, what to do."""


class StoreUnavailable(Exception):  # noqa: N818 - a condition, not a mistake
    """A shard did not answer in its time, or the connection broke: nothing is known to be written, try again."""


class HistoryUnavailable(StoreUnavailable):
    """The Cassandra of the history did not answer in its time: runs go on, and what is older is not to be had now."""


class CommitUnknown(StoreUnavailable):
    """The connection broke at COMMIT: the transaction may or may not stand. Re-read before acting there again."""


class PoolExhausted(StoreUnavailable):
    """Every connection stayed busy for the whole bounded wait."""


class Conflict(Exception):  # noqa: N818 - lost a race; the whole transaction may be run again
    """A deadlock, lock-wait time-out or lost compare-and-set: rolled back, safe to repeat whole."""


class Misplaced(StoreUnavailable):
    """A shard does not hold these partitions (any more): read the placement again, then try again."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.partitions = list(partitions)
        super().__init__(f"partitions {self.partitions} are not on this shard")
