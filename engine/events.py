"""Named events with fields. Stages emit; log wording and metrics are subscribers: logic holds no log strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Subscriber = Callable[[str, dict[str, Any]], None]


class Events:
    """Hands each emitted event to every subscriber, in order of subscription, in the emitter's thread."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def emit(self, name: str, **fields: Any) -> None:
        for subscriber in self._subscribers:
            subscriber(name, fields)
