"""The timing wheel's slow twin: a sorted list. What it does is the specification of `engine/_native/wheel.pyx`."""

from bisect import insort
from typing import Any, NamedTuple


class Entry(NamedTuple):
    counts_as_ms: int  # the due time, or the twin's own time if that was later when the entry was added
    number: int
    due_ms: int
    item: Any


class WheelTwin:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._entries: list[Entry] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, due_ms: int, item: Any) -> int:
        self._added += 1
        insort(self._entries, Entry(max(due_ms, self.now_ms), self._added, due_ms, item))
        return self._added

    def cancel(self, number: int) -> Any | None:
        for entry in self._entries:
            if entry.number == number:
                self._entries.remove(entry)
                return entry.item
        return None

    def advance(self, now_ms: int) -> list[Any]:
        self.now_ms = max(self.now_ms, now_ms)
        due = [entry.item for entry in self._entries if entry.due_ms <= now_ms]
        self._entries = [entry for entry in self._entries if entry.due_ms > now_ms]
        return due

    def earliest_ms(self) -> int:
        return min((entry.due_ms for entry in self._entries), default=-1)

    def clear(self) -> list[Any]:
        items = [entry.item for entry in self._entries]
        self._entries = []
        return items
