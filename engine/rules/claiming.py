"""Which of the runs that wait are claimed first, where there is not room for all: by lateness, then by priority.

As in firing (engine/rules/ready.py): runs on time keep half of the room, and inside either class the priorities share
it by weight, so that low never starves; what one leaves, the highest that wants more has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from engine.rules.ready import WEIGHTS

T = TypeVar("T")


def chosen(on_time: Mapping[int, Sequence[T]], late: Mapping[int, Sequence[T]], room: int) -> list[T]:
    """At most ``room`` of the candidates, which are given by priority, each in their own order."""
    late_room = max(room // 2, room - _count(on_time))
    taken = _by_weight(late, min(late_room, _count(late)))
    return _by_weight(on_time, room - len(taken)) + taken


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
