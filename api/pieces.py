"""Long work in pieces: what a call does without a pause holds up everybody's calls in its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_pieces(items: Iterable[T], size: int) -> AsyncIterator[T]:
    """The items, others' calls in between: after ``size`` of them whoever waits has a turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)
