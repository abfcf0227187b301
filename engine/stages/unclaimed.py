"""Unclaimed: function runs that no worker will have any more end on record, instead of waiting for ever.

Those of a disabled tenant are skipped, as its calls are. One that nobody has claimed within its job's
``retry.max_age`` of the moment it was due fails (``max_age``: no try begins later), with a dead letter and a notice. So
what nobody asks for keeps no day from being dropped. Due, not scheduled: a retry of a dead letter is as good as new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from engine.clock import Clock
from engine.events import Events
from engine.model import Definition, Reason, RetryPolicy, RunKey
from engine.rules.lanes import WORKERS_LANES_FROM
from engine.stages.take import Take, Taking, Waiting
from engine.stages.versions import CallPlan, Versions
from engine.store.shard import Shard
from engine.store.tenants import Tenants

# Lanes of one look, each a step of a loose scan; were there more, the next look goes on behind them at once.
LANES_PER_LOOK = 5_000

# Runs of one transaction.
RUNS_PER_BATCH = 1_000

# Only what has waited for this long is walked through for its age: where workers are, nothing has.
AGED_MS = 60_000
# Lanes walked on with in one look, and runs of each: a backlog that waits for days costs some hundredths of a core.
WALKS_PER_LOOK = 4
RUNS_PER_WALK = 200

# Whose lane one is never changes; some 100 bytes each.
OWNERS_MAX = 100_000


class Lane(NamedTuple):
    """Runs of one function and one priority, and when the first of them was due."""

    lane: int
    priority: int
    due_at_ms: int


class Aged(NamedTuple):
    """A row of ``aged_work``."""

    due_at_ms: int
    tenant_id: int
    partition_id: int
    scheduled_at_ms: int
    job_id: int
    version: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.partition_id, self.scheduled_at_ms, self.job_id)


_START = Aged(-1, 0, 0, 0, 0, 0)

Why = Callable[[Waiting, CallPlan | Exception], Reason | None]


class Unclaimed:
    """Looks at one shard. Several at once are harmless: what another has locked is left to it."""

    def __init__(
        self,
        shard: Shard,
        versions: Versions,
        tenants: Tenants,
        is_told: Callable[[int, Definition], bool],
        clock: Clock,
        events: Events,
    ) -> None:
        self._shard = shard
        self._versions = versions
        self._tenants = tenants
        self._taking = Taking(shard, versions, events, is_told)
        self._clock = clock
        self._events = events
        self._lanes_from = WORKERS_LANES_FROM
        self._owners: dict[int, int] = {}
        self._walked: dict[tuple[int, int], Aged] = {}

    async def run_once(self, now_ms: int) -> bool:
        """One look at the lanes that have something due; True if there may be more to do at once."""
        lanes = await self._look()
        now_ms = self._clock.now_ms()
        due = [lane for lane in lanes if lane.due_at_ms <= now_ms]
        stopped = await self._of_disabled(due)
        more = [await self._skip(lane, now_ms) for lane in stopped]
        await self._walk([lane for lane in due if lane.due_at_ms <= now_ms - AGED_MS and lane not in stopped], now_ms)
        return len(lanes) == LANES_PER_LOOK or any(more)

    async def _look(self) -> list[Lane]:
        values = {"lanes_from": self._lanes_from, "rows_max": LANES_PER_LOOK}
        lanes = [Lane(*row) for row in (await self._shard.execute("waiting_lanes", values)).rows]
        full = len(lanes) == LANES_PER_LOOK
        # A lane has up to four priorities: the last one may go on.
        self._lanes_from = lanes[-1].lane if full else WORKERS_LANES_FROM
        return lanes

    async def _of_disabled(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Those of disabled tenants."""
        owners = await self._owners_of(lanes)
        tenant_ids = sorted(set(owners.values()))
        disabled = {
            tenant_id
            for tenant_id in tenant_ids
            if (tenant := await self._tenants.tenants.get(tenant_id)) is not None and tenant.disabled
        }
        return [lane for lane in lanes if owners.get(lane.lane) in disabled]

    async def _owners_of(self, lanes: Iterable[Lane]) -> Mapping[int, int]:
        """Tenants by lane."""
        unknown = sorted({(each.lane, each.priority) for each in lanes if each.lane not in self._owners})
        if unknown:
            if len(self._owners) + len(unknown) > OWNERS_MAX:
                self._owners.clear()
            async with self._shard.connection() as connection:
                rows = await connection.fetch_rows("lane_owners", unknown, bytes_max=self._shard.packet_bytes_max)
            self._owners |= dict(rows)
        return self._owners

    async def _skip(self, lane: Lane, now_ms: int) -> bool:
        """A batch of a disabled tenant's runs; True if there may be more."""
        owner = self._owners[lane.lane]
        values = {"lane": lane.lane, "priority": lane.priority, "now_ms": now_ms, "rows_max": RUNS_PER_BATCH}
        rows = (await self._shard.execute("due_work", values)).rows

        def why(run: Waiting, call: CallPlan | Exception) -> Reason | None:
            return Reason.TENANT_DISABLED if run.tenant_id == owner else None

        await self._end([RunKey(*row[:3]) for row in rows], why, now_ms)
        return len(rows) == RUNS_PER_BATCH

    async def _walk(self, lanes: Sequence[Lane], now_ms: int) -> None:
        """On through what has waited for long, lane by lane, those first that have waited longest for their turn."""
        names = {(each.lane, each.priority) for each in lanes}
        self._walked = {name: at for name, at in self._walked.items() if name in names}
        turn = list(self._walked)
        fresh = [name for name in sorted(names) if name not in self._walked]
        for lane, priority in (fresh + turn)[:WALKS_PER_LOOK]:
            after = self._walked.pop((lane, priority), _START)
            rows = await self._aged(lane, priority, after, now_ms)
            self._walked[lane, priority] = rows[-1] if len(rows) == RUNS_PER_WALK else _START
            await self._end_aged(rows, now_ms)

    async def _aged(self, lane: int, priority: int, after: Aged, now_ms: int) -> list[Aged]:
        values = {
            "lane": lane,
            "priority": priority,
            "due_after": after.due_at_ms,
            "after_tenant": after.tenant_id,
            "after_partition": after.partition_id,
            "after_scheduled_at": after.scheduled_at_ms,
            "after_job": after.job_id,
            "aged_at": now_ms - AGED_MS,
            "rows_max": RUNS_PER_WALK,
        }
        return [Aged(*row) for row in (await self._shard.execute("aged_work", values)).rows]

    async def _end_aged(self, rows: Sequence[Aged], now_ms: int) -> None:
        """What of these is older than its job lets it become."""
        if not rows:
            return
        async with self._shard.connection() as connection:
            calls = await self._versions.load(
                connection,
                [(row.partition_id, row.job_id, row.version) for row in rows],
                self._shard.packet_bytes_max,
            )
        old = [
            row.key
            for row in rows
            if _is_too_old(row.due_at_ms, calls[row.partition_id, row.job_id, row.version], now_ms)
        ]

        def why(run: Waiting, call: CallPlan | Exception) -> Reason | None:
            return Reason.MAX_AGE if _is_too_old(run.due_at_ms, call, now_ms) else None

        await self._end(old, why, now_ms)

    async def _end(self, keys: Sequence[RunKey], why: Why, now_ms: int) -> None:
        """Once more under their locks: a worker may have been faster."""
        if not keys:
            return

        async def transaction() -> Take:
            async with self._shard.transaction() as connection:
                return await self._taking.give_up(connection, sorted(keys), now_ms, why)

        ended = len((await self._shard.retrying(transaction)).gone)
        if ended:
            self._events.emit("work.unclaimed", runs=ended, shard=self._shard.index)


def _is_too_old(due_at_ms: int, call: CallPlan | Exception, now_ms: int) -> bool:
    """What cannot be read has the default policy here too: claiming would set it aside, and nobody claims it."""
    policy = RetryPolicy() if isinstance(call, Exception) else call.definition.retry
    return now_ms > due_at_ms + policy.max_age_ms
