"""Which of what waits is taken first, where there is not room for all: by lateness, then by priority.

As in firing (engine/rules/ready.py): runs on time keep half of the room, and inside either class the priorities share
it by weight, so that low never starves; what one leaves, the highest that wants more has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from engine.rules.ready import LATE_MS, WEIGHTS

T = TypeVar("T")


def chosen(on_time: Mapping[int, Sequence[T]], late: Mapping[int, Sequence[T]], room: int) -> list[T]:
    """At most ``room`` of the candidates, which are given by priority, each in their own order."""
    late_room = max(room // 2, room - _count(on_time))
    taken = _by_weight(late, min(late_room, _count(late)))
    return _by_weight(on_time, room - len(taken)) + taken


class DueClass(NamedTuple):
    """Jobs of one priority that are due after one time and until another; ``rows`` are its share of a batch."""

    priority: int
    after_ms: int
    until_ms: int
    rows: int


def due_classes(first_ms: Mapping[int, int], now_ms: int, until_ms: int, rows: int) -> list[DueClass]:
    """The classes that may be there, those on time first: what one leaves of its share goes to the next.

    ``first_ms`` is the first time of each priority that has one. Runs that are late already are a class of their own.
    """
    late_ms = min(until_ms, now_ms - LATE_MS)
    late = [priority for priority, at_ms in first_ms.items() if at_ms <= late_ms]
    on_time = [] if late_ms == until_ms else list(first_ms)
    late_rows = rows // 2 if on_time and late else rows if late else 0
    return [
        DueClass(priority, after_ms, before_ms, share)
        for priorities, after_ms, before_ms, room in (
            (on_time, late_ms, until_ms, rows - late_rows),
            (late, -1, late_ms, late_rows),
        )
        for priority, share in _shares(sorted(priorities), room)
    ]


def _shares(priorities: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Each has its weight's part; the highest also what is left of dividing."""
    total = sum(WEIGHTS[priority] for priority in priorities)
    shares = {priority: room * WEIGHTS[priority] // total for priority in priorities}
    for rank, (priority, share) in enumerate(shares.items()):
        yield priority, share if rank else room - sum(shares.values()) + share


def _by_weight(candidates: Mapping[int, Sequence[T]], room: int) -> list[T]:
    total = sum(WEIGHTS.values())
    takes = {priority: min(len(candidates.get(priority, ())), room * w // total) for priority, w in WEIGHTS.items()}
    left = room - sum(takes.values())
    for priority in sorted(WEIGHTS):
        more = min(left, len(candidates.get(priority, ())) - takes[priority])
        takes[priority] += more
        left -= more
    return [item for priority, n in takes.items() if n for item in candidates[priority][:n]]


def _count(candidates: Mapping[int, Sequence[T]]) -> int:
    return sum(map(len, candidates.values()))
