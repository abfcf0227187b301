"""Candidates: which of the waiting runs are to be claimed first, read without locks; by class, and fair in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.model import Priority, RunKey
from engine.rules.claiming import chosen
from engine.rules.fairness import Turns, by_turns
from engine.rules.ready import LATE_MS
from engine.store.connection import Row
from engine.store.shard import Shard
from engine.store.statements import Value

# Entries of deferred.due that one look passes, about 1 µs each, and how many it brings.
PLACES_MAX = 200_000
FOUND_MAX = 1_000


class Candidate(NamedTuple):
    """A row of ``due_deferred``."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int
    tenant_id: int

    @property
    def key(self) -> RunKey:
        return RunKey(*self[:3])


class Class(NamedTuple):
    """Runs of one priority that are due after one time and until another."""

    priority: int
    after_ms: int
    until_ms: int

    @property
    def name(self) -> tuple[int, bool]:
        return self.priority, self.after_ms < 0


class Candidates:
    """Of the runs that wait on one shard, for one claimer."""

    def __init__(self, shard: Shard, clock: Clock) -> None:
        self._shard = shard
        self._clock = clock
        self._turns: defaultdict[tuple[int, bool], Turns[Candidate]] = defaultdict(lambda: Turns(_tenant_of))

    async def first(self, lanes: Sequence[int], now_ms: int, due_at_ms: int, rows_max: int) -> list[RunKey]:
        """In one round trip the first of each class; what is a minute late is a class of its own, as in firing."""
        if not lanes:
            return []
        late_ms = min(due_at_ms, now_ms - LATE_MS)
        spans = ((late_ms, due_at_ms), (-1, late_ms))
        classes = [Class(priority, *span) for span in spans for priority in Priority]
        asked = [("due_deferred", _range(lanes, each) | {"rows_max": rows_max}) for each in classes]
        answers = await self._shard.ask(*asked)
        found: dict[bool, dict[int, list[Candidate]]] = {False: {}, True: {}}
        for each, answer in zip(classes, answers, strict=True):
            priority, late = each.name
            found[late][priority] = await self._by_turns(lanes, each, answer.rows, rows_max, now_ms)
        return sorted(candidate.key for candidate in chosen(found[False], found[True], rows_max))

    async def _by_turns(
        self, lanes: Sequence[int], of: Class, rows: Sequence[Row], rows_max: int, now_ms: int
    ) -> list[Candidate]:
        """The class by turns of its tenants: those that were read, and what waits behind the loud ones."""
        candidates = [Candidate(*row) for row in rows]
        turns = self._turns[of.name]
        turns.read([candidate.tenant_id for candidate in candidates], rows_max)
        if turns.looks(now_ms):
            await self._look(turns, lanes, of, now_ms)
        others = turns.take(turns.share(rows_max))
        return by_turns(list(dict.fromkeys(candidates + others)), _tenant_of)

    async def _look(self, turns: Turns[Candidate], lanes: Sequence[int], of: Class, now_ms: int) -> None:
        begun_ms = self._clock.boot_ms()
        values = _range(lanes, of) | {"loud": turns.loud, "places_max": PLACES_MAX, "rows_max": FOUND_MAX}
        rows = (await self._shard.execute("due_deferred_of_others", values)).rows
        turns.found([Candidate(*row) for row in rows], self._clock.boot_ms() - begun_ms, now_ms)


def _range(lanes: Sequence[int], of: Class) -> dict[str, Value]:
    return {"partitions": lanes, "priority": of.priority, "due_after": of.after_ms, "due_at": of.until_ms}


def _tenant_of(candidate: Candidate) -> int:
    return candidate.tenant_id
