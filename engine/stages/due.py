"""Due jobs: the rows that a planning transaction locks, by class, and fair between the tenants of a class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.rules.claiming import DueClass
from engine.rules.fairness import Turns
from engine.store.connection import Connection
from engine.store.shard import Shard
from engine.store.statements import Value

# Places in jobs.due that one look passes, 2 to 8 µs each, and how many it brings.
PLACES_MAX = 50_000
FOUND_MAX = 1_000


class DueJob(NamedTuple):
    """A row of ``lock_due_jobs``."""

    partition_id: int
    job_id: int
    tenant_id: int
    version: int
    next_run_at_ms: int
    last_run_at_ms: int | None

    @property
    def version_key(self) -> tuple[int, int, int]:
        return self.partition_id, self.job_id, self.version


class Place(NamedTuple):
    """Jobs of one tenant that are due in one second in one partition."""

    partition_id: int
    next_run_at_ms: int
    tenant_id: int


class Share(NamedTuple):
    """A class of due jobs, and what of it comes first for fairness: at most ``each_max`` jobs of each place."""

    of: DueClass
    places: list[Place]
    each_max: int


class DueJobs:
    """The due jobs of one shard, for one planner."""

    def __init__(self, shard: Shard, clock: Clock) -> None:
        self._shard = shard
        self._clock = clock
        self._turns: defaultdict[tuple[int, bool], Turns[Place]] = defaultdict(lambda: Turns(_tenant_of))

    async def shares(self, partitions: Sequence[int], classes: Sequence[DueClass], now_ms: int) -> list[Share]:
        """The classes with what is to come first of each; without pressure it asks nothing."""
        return [await self._share(partitions, each, now_ms) for each in classes]

    async def _share(self, partitions: Sequence[int], of: DueClass, now_ms: int) -> Share:
        turns = self._turns_of(of)
        if turns.looks(now_ms):
            await self._look(turns, partitions, of, now_ms)
        rows = turns.share(of.rows)
        mine = set(partitions)
        places = [
            place
            for place in turns.take(rows)
            if place.partition_id in mine and of.after_ms < place.next_run_at_ms <= of.until_ms
        ]
        return Share(of, places, max(1, rows // max(1, len(places))))

    async def _look(self, turns: Turns[Place], partitions: Sequence[int], of: DueClass, now_ms: int) -> None:
        begun_ms = self._clock.boot_ms()
        values = _range(partitions, of) | {"loud": turns.loud, "places_max": PLACES_MAX, "rows_max": FOUND_MAX}
        rows = (await self._shard.execute("tenants_with_due_jobs", values)).rows
        turns.found([Place(*row) for row in rows], self._clock.boot_ms() - begun_ms, now_ms)

    async def lock(
        self, connection: Connection, partitions: Sequence[int], shares: Sequence[Share], bytes_max: int
    ) -> list[DueJob]:
        """Due jobs of each class in turn; what one leaves of its share, the next may have."""
        jobs: list[DueJob] = []
        rows_max = 0
        for share in shares:
            rows_max += share.of.rows
            first = await _lock_places(connection, share, bytes_max)
            rest = await _lock_in_order(connection, partitions, share.of, rows_max - len(first))
            self._turns_of(share.of).read([job.tenant_id for job in rest], rows_max - len(first))
            # A transaction's own locks are not skipped: what was first in its place may be first in order, too.
            found = dict.fromkeys(first + rest)
            rows_max -= len(found)
            jobs += found
        return jobs

    def _turns_of(self, of: DueClass) -> Turns[Place]:
        return self._turns[of.priority, of.after_ms < 0]


async def _lock_places(connection: Connection, share: Share, bytes_max: int) -> list[DueJob]:
    if not share.places:
        return []
    values: dict[str, Value] = {"priority": share.of.priority, "each_max": share.each_max}
    rows = await connection.fetch_rows("lock_jobs_of_tenants", share.places, values, bytes_max=bytes_max)
    return [DueJob(*row) for row in rows]


async def _lock_in_order(
    connection: Connection, partitions: Sequence[int], of: DueClass, rows_max: int
) -> list[DueJob]:
    rows = (await connection.execute("lock_due_jobs", _range(partitions, of) | {"rows_max": rows_max})).rows
    return [DueJob(*row) for row in rows]


def _range(partitions: Sequence[int], of: DueClass) -> dict[str, Value]:
    return {
        "partitions": partitions,
        "priority": of.priority,
        "due_after": of.after_ms,
        "horizon_at": of.until_ms,
    }


def _tenant_of(place: Place) -> int:
    return place.tenant_id
