"""What a tenant may use: calls a second by a token bucket, jobs by a count that is taken again now and then."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from api.errors import LIMIT_REACHED, TOO_MANY_REQUESTS, Problem
from engine.clock import Clock
from engine.errors import StoreUnavailable
from engine.rules.quota import TENANT_STARTS_LIMIT, TENANT_STARTS_PER_S
from engine.store.lists import count_jobs
from engine.store.shard import Shard
from engine.store.tenants import Tenant

REQUESTS_LIMIT, REQUESTS_PER_S = "requests_per_s", 5_000
JOBS_LIMIT, JOBS_MAX = "jobs", 10_000_000
DEFAULTS = {REQUESTS_LIMIT: REQUESTS_PER_S, JOBS_LIMIT: JOBS_MAX, TENANT_STARTS_LIMIT: TENANT_STARTS_PER_S}

# So many calls of one tenant are carried out at once where it has the process to itself: what comes together is
# answered together, at half the cost. Where others call too, each has so few that nobody waits behind more than these,
# and the core has time left: with 8 of them another tenant's calls took 43 ms, with 2 of them 17 (p99, `bench walls`).
CALLS_AT_ONCE_MAX = 64
CALLS_AT_ONCE_BESIDE_OTHERS = 2
# And while another's call is being carried out: what is inside already ends soon, and each of that call's statements
# would come back to a process that is busy with these.
CALLS_AT_ONCE_DURING_OTHERS = 1
# Whoever has called in this time counts as calling.
CALLS_LATELY_MS = 1_000

# Tenants whose buckets are kept; one that is forgotten begins with a full one.
BUCKETS_MAX = 50_000
# Counting a million jobs costs a shard some 200 ms, so a large count is believed for longer.
COUNT_AGAIN_MS, COUNT_LARGE_AGAIN_MS, LARGE = 60_000, 600_000, 100_000
# At the limit the count is taken again, but not for every call.
COUNT_AT_LIMIT_MS = 1_000


def limits_of(tenant: Tenant | None) -> dict[str, int]:
    """Every limit of a tenant: its own, else the default."""
    return DEFAULTS | dict(tenant.limits if tenant else {})


class Allowance(NamedTuple):
    """What is left of this second's calls, for the RateLimit headers of the IETF draft."""

    limit: int
    left: int

    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Policy": f'"requests";q={self.limit};w=1',
            "RateLimit": f'"requests";r={self.left};t=1',
        }


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at_ms: int


class RequestRates:
    """A bucket per tenant, of one second's calls; ``processes`` share a tenant's limit evenly."""

    def __init__(self, clock: Clock, processes: int = 1) -> None:
        self._clock = clock
        self._processes = processes
        self._buckets: OrderedDict[int, _Bucket] = OrderedDict()

    def take(self, tenant_id: int, limit_per_s: int) -> Allowance:
        """Count one call; 429 if there is none left."""
        mine_per_s = max(1, limit_per_s // self._processes)
        bucket = self._filled(tenant_id, mine_per_s)
        if bucket.tokens < 1:
            headers = {"Retry-After": "1", **Allowance(mine_per_s, 0).headers()}
            raise Problem(TOO_MANY_REQUESTS, f"at most {limit_per_s} calls a second", headers=headers)
        bucket.tokens -= 1
        return Allowance(mine_per_s, int(bucket.tokens))

    def used(self, tenant_id: int, limit_per_s: int) -> int:
        """How much of the bucket is gone: the calls of about the last second."""
        mine_per_s = max(1, limit_per_s // self._processes)
        return int(mine_per_s - self._filled(tenant_id, mine_per_s).tokens)

    def _filled(self, tenant_id: int, per_s: int) -> _Bucket:
        now_ms = self._clock.boot_ms()
        bucket = self._buckets.get(tenant_id)
        if bucket is None:
            bucket = self._buckets[tenant_id] = _Bucket(per_s, now_ms)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        bucket.tokens = min(per_s, bucket.tokens + (now_ms - bucket.filled_at_ms) * per_s / 1000)
        bucket.filled_at_ms = now_ms
        return bucket


@dataclass(slots=True)
class _Count:
    counted: int
    at_ms: int
    created: int = 0

    @property
    def jobs(self) -> int:
        return self.counted + self.created


@dataclass(slots=True)
class _Lane:
    """Whose it is, how many calls are inside, who waits, and when the last one came."""

    tenant_id: int
    inside: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    called_at_ms: int = 0


class Lanes:
    """Each tenant's own share of a process: so many of its calls are carried out at once, the others wait their turn.

    A call takes half a millisecond of the process's one core, so this is what one tenant can put before another's.
    """

    def __init__(
        self,
        clock: Clock,
        alone_max: int = CALLS_AT_ONCE_MAX,
        beside_max: int = CALLS_AT_ONCE_BESIDE_OTHERS,
        during_max: int = CALLS_AT_ONCE_DURING_OTHERS,
    ) -> None:
        self._clock = clock
        self._alone_max = alone_max
        self._beside_max = min(alone_max, beside_max)
        self._during_max = min(self._beside_max, during_max)
        # The one that called last stands last.
        self._lanes: OrderedDict[int, _Lane] = OrderedDict()
        # Those with calls inside; nobody waits without one.
        self._busy: dict[int, _Lane] = {}

    @asynccontextmanager
    async def enter(self, tenant_id: int) -> AsyncIterator[None]:
        """Inside, the call is carried out; first come, first served."""
        lane = self._called(tenant_id)
        if lane.waiting or lane.inside >= self._at_once_max(lane):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lane.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._gave_up(lane, turn)
                raise
        else:
            self._take_place(lane)
        try:
            yield
        finally:
            self._leave(lane)

    def __len__(self) -> int:
        """Tenants with calls under way, or lately."""
        return len(self._lanes)

    def _called(self, tenant_id: int) -> _Lane:
        now_ms = self._clock.boot_ms()
        lane = self._lanes.get(tenant_id)
        if lane is None:
            lane = self._lanes[tenant_id] = _Lane(tenant_id)
        lane.called_at_ms = now_ms
        self._lanes.move_to_end(tenant_id)
        while (oldest := next(iter(self._lanes.values()))).called_at_ms < now_ms - CALLS_LATELY_MS:
            if oldest.inside or oldest.waiting:
                break  # it is calling all the same
            self._lanes.popitem(last=False)
        return lane

    def _at_once_max(self, lane: _Lane) -> int:
        """One at least."""
        others = len(self._busy) - (lane.inside > 0)
        if others:
            return self._during_max
        return self._alone_max if len(self._lanes) == 1 else self._beside_max

    def _take_place(self, lane: _Lane) -> None:
        lane.inside += 1
        self._busy[lane.tenant_id] = lane

    def _leave(self, lane: _Lane) -> None:
        lane.inside -= 1
        if not lane.inside:
            del self._busy[lane.tenant_id]
        self._let_in(lane)
        if len(self._busy) == 1:  # whoever is left alone has more room
            self._let_in(*self._busy.values())

    def _let_in(self, lane: _Lane) -> None:
        """As many as there is room for now."""
        while lane.waiting and lane.inside < self._at_once_max(lane):
            turn = lane.waiting.popleft()
            if not turn.done():
                self._take_place(lane)
                turn.set_result(None)

    def _gave_up(self, lane: _Lane, turn: asyncio.Future[None]) -> None:
        """A caller that has gone takes no place with it, also where its turn had just come."""
        if turn.done() and not turn.cancelled():
            self._leave(lane)


class JobCounts:
    """How many jobs each tenant has: counted on all shards, plus what this process has created since."""

    def __init__(self, shards: list[Shard], clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._counts: OrderedDict[int, _Count] = OrderedDict()
        self._counting: dict[int, asyncio.Task[_Count]] = {}

    async def check(self, tenant_id: int, limit: int) -> None:
        """409 if the tenant has as many jobs as it may have."""
        count = await self._recent(tenant_id, COUNT_AGAIN_MS)
        if count.jobs >= limit:
            count = await self._recent(tenant_id, COUNT_AT_LIMIT_MS)
        if count.jobs >= limit:
            raise Problem(LIMIT_REACHED, f"at most {limit} jobs; delete some, or ask for more")

    async def room(self, tenant_id: int, limit: int) -> int:
        """How many more jobs the tenant may have, by a count that may be a minute old."""
        return max(0, limit - (await self._recent(tenant_id, COUNT_AGAIN_MS)).jobs)

    def created(self, tenant_id: int) -> None:
        if tenant_id in self._counts:
            self._counts[tenant_id].created += 1

    async def jobs(self, tenant_id: int) -> int:
        """The number now, a second old at most unless it is large."""
        return (await self._recent(tenant_id, COUNT_AT_LIMIT_MS)).jobs

    async def _recent(self, tenant_id: int, age_ms_max: int) -> _Count:
        count = self._counts.get(tenant_id)
        if count is not None:
            if count.counted > LARGE:
                age_ms_max *= COUNT_LARGE_AGAIN_MS // COUNT_AGAIN_MS
            if self._clock.boot_ms() - count.at_ms <= age_ms_max:
                return count
        task = self._counting.get(tenant_id)
        if task is None:
            task = self._counting[tenant_id] = asyncio.create_task(self._count_again(tenant_id))
            task.add_done_callback(lambda _: self._counting.pop(tenant_id))
        return await asyncio.shield(task)

    async def _count_again(self, tenant_id: int) -> _Count:
        """Once for all who ask meanwhile: a batch asks for each of its jobs."""
        began_ms = self._clock.boot_ms()
        counted = sum(await asyncio.gather(*(_count(shard, tenant_id) for shard in self._shards)))
        count = self._counts[tenant_id] = _Count(counted, began_ms)
        if len(self._counts) > BUCKETS_MAX:
            self._counts.popitem(last=False)
        return count


async def _count(shard: Shard, tenant_id: int) -> int:
    """A shard that is away counts for nothing: its jobs are no reason to refuse those of the others."""
    try:
        return await count_jobs(shard, tenant_id)
    except StoreUnavailable:
        return 0
