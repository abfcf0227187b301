"""Health across processes: each writes its state into a slot of memory shared since before the fork; one serves them.

A slot is a length and a JSON document. A reader that meets a half-written one keeps what it read before.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Any

import orjson

SLOT_BYTES = 16_384
_HEAD = struct.Struct("<II")


class Board:
    """``slots`` slots; made before the fork, shared by every process after it."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT_BYTES)
        self._last: list[dict[str, Any]] = [{} for _ in range(slots)]

    def write(self, slot: int, state: dict[str, Any]) -> None:
        """Replace what the slot says; a state over the bound is a mistake of ours."""
        document = orjson.dumps(state)
        if len(document) > SLOT_BYTES - _HEAD.size:
            raise ValueError(f"state of {len(document)} bytes in a slot of {SLOT_BYTES}")
        at = slot * SLOT_BYTES
        self._memory[at + _HEAD.size : at + _HEAD.size + len(document)] = document
        _HEAD.pack_into(self._memory, at, len(document), zlib.crc32(document))

    def clear(self, slot: int) -> None:
        """The slot's process is gone."""
        self._last[slot] = {}
        _HEAD.pack_into(self._memory, slot * SLOT_BYTES, 0, 0)

    def read(self) -> list[dict[str, Any]]:
        """What every slot says; an empty one is {}."""
        return [self._read_slot(slot) for slot in range(len(self._last))]

    def _read_slot(self, slot: int) -> dict[str, Any]:
        at = slot * SLOT_BYTES
        size, checksum = _HEAD.unpack_from(self._memory, at)
        document = self._memory[at + _HEAD.size : at + _HEAD.size + size]
        if size == 0:
            self._last[slot] = {}
        elif zlib.crc32(document) == checksum:
            self._last[slot] = orjson.loads(document)
        return self._last[slot]
