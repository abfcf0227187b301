"""Health across processes: each writes its state into a slot of memory shared since before the fork; one serves them.

A slot is a length and a JSON document. A reader that meets a half-written one keeps what it read before.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import orjson

from engine.clock import Clock
from engine.metrics import Metrics
from engine.process import used
from engine.service import Service

SLOT_BYTES = 65_536
_HEAD = struct.Struct("<II")
_MOMENT = struct.Struct("<q")


class Report:
    """What every process says of itself."""

    def __init__(self, process: str, clock: Clock, metrics: Metrics) -> None:
        self._process = process
        self._clock = clock
        self._metrics = metrics
        self._started_at_ms = clock.now_ms()

    def state(self, services: Iterable[Service]) -> dict[str, Any]:
        boot_ms = self._clock.boot_ms()
        return {
            "process": self._process,
            "at_ms": self._clock.now_ms(),
            "started_at_ms": self._started_at_ms,
            "loop_age_ms": {service.name: boot_ms - service.last_loop_boot_ms for service in services},
            "metrics": self._metrics.snapshot(),
            **used(),
        }


class Board:
    """``slots`` slots; made before the fork, shared by every process after it."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * SLOT_BYTES)
        self._busy = mmap.mmap(-1, slots * _MOMENT.size)
        self._last: list[dict[str, Any]] = [{} for _ in range(slots)]

    def tell_busy(self, slot: int, boot_ms: int) -> None:
        """The slot's process is behind with its calls at this moment."""
        _MOMENT.pack_into(self._busy, slot * _MOMENT.size, boot_ms)

    def any_busy(self, since_boot_ms: int) -> bool:
        """Whether a process of this host has been behind since then."""
        return any(moment >= since_boot_ms for (moment,) in _MOMENT.iter_unpack(self._busy[:]))

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
