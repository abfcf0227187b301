"""What a fleet is doing now, read from its shards: workers, lag, backlog and the coming minutes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.errors import CallerError
from engine.model import Cron, Definition, Priority
from engine.rules.schedule import next_n_times
from engine.store.brakes import Brake, brakes_in_force
from engine.store.shard import Shard
from engine.store.statements import Value

# Lag is that of the runs of this last span; the runs of a second need a moment to be settled.
LAG_SPAN_MS = 60_000
# The mark follows the present by about a minute and a half: whatever is open below it waits in deferred.
IN_FLIGHT_SPAN_MS = 120_000
# What a limit holds up is due again within this.
HELD_SPAN_MS = 10_000
# More jobs than this in the coming minutes are counted once each: reading what they say would take a shard's time.
JOBS_MAX = 50_000
# A question of an operator may scan the runs of a large second.
TIMEOUT_MS = 30_000


@dataclass(slots=True)
class WorkerStatus:
    """An executor, the sum of its workers: it is one on each shard, and each shard judges it by its own clock."""

    host: str
    pid: int
    started_at_ms: int
    heartbeat_age_ms: int
    live: bool
    draining: bool
    partitions: int


@dataclass(slots=True)
class Status:
    """The sum over all shards. ``lags``: runs by milliseconds late; ``coming``: runs by second.

    Where ``complete`` is False, only planned runs and each job's next time were counted as coming.
    """

    at_ms: int = 0
    partitions: int = 0
    workers: dict[tuple[str, int, bool], WorkerStatus] = field(default_factory=dict)
    lags: dict[Priority, Counter[int]] = field(default_factory=dict)
    unplanned: int = 0
    waiting: int = 0
    in_flight: int = 0
    held: int = 0
    oldest_at_ms: int | None = None
    coming: Counter[int] = field(default_factory=Counter)
    complete: bool = True
    brakes: list[Brake] = field(default_factory=list)

    @property
    def partitions_owned(self) -> int:
        return sum(worker.partitions for worker in self.workers.values() if worker.live)


async def read_status(shards: Sequence[Shard], ahead_ms: int) -> Status:
    """Ask every shard, each for its own present and the ``ahead_ms`` after it."""
    status = Status(brakes=await brakes_in_force(shards[0]))
    await asyncio.gather(*(_read_shard(shard, ahead_ms, status) for shard in shards))
    return status


async def _read_shard(shard: Shard, ahead_ms: int, status: Status) -> None:
    now_ms = await shard.now_ms()
    partitions = [row[0] for row in (await shard.execute("placed_partitions")).rows]
    status.at_ms = max(status.at_ms, now_ms)
    status.partitions += len(partitions)
    await _read_workers(shard, now_ms, status)
    await _read_lags(shard, partitions, now_ms, status)
    await _read_backlog(shard, partitions, now_ms, status)
    await _read_coming(shard, partitions, now_ms, now_ms + ahead_ms, status)


async def _read_workers(shard: Shard, now_ms: int, status: Status) -> None:
    for host, pid, started_at, heartbeat_at, lease_until, draining, partitions in (
        await shard.execute("status_workers")
    ).rows:
        live, age_ms = lease_until > now_ms, now_ms - heartbeat_at
        known = status.workers.setdefault(
            (host, pid, live), WorkerStatus(host, pid, started_at, age_ms, live, bool(draining), 0)
        )
        known.partitions += partitions
        known.started_at_ms = min(known.started_at_ms, started_at)
        known.heartbeat_age_ms = max(known.heartbeat_age_ms, age_ms)


async def _read_lags(shard: Shard, partitions: list[int], now_ms: int, status: Status) -> None:
    values: dict[str, Value] = {"partitions": partitions, "from_at": now_ms - LAG_SPAN_MS, "to_at": now_ms}
    for priority, lag_ms, runs in (await shard.execute("status_lags", values, TIMEOUT_MS)).rows:
        status.lags.setdefault(Priority(priority), Counter())[int(lag_ms)] += runs


async def _read_backlog(shard: Shard, partitions: list[int], now_ms: int, status: Status) -> None:
    values: dict[str, Value] = {
        "partitions": partitions,
        "now_ms": now_ms,
        "from_at": now_ms - IN_FLIGHT_SPAN_MS,
        "to_at": now_ms,
        "held_until": now_ms + HELD_SPAN_MS,
    }
    for what in ("unplanned", "waiting", "in_flight", "held"):
        count, oldest_at = (await shard.execute(f"status_{what}", values, TIMEOUT_MS)).rows[0]
        setattr(status, what, getattr(status, what) + count)
        if oldest_at is not None and (status.oldest_at_ms is None or oldest_at < status.oldest_at_ms):
            status.oldest_at_ms = int(oldest_at)


async def _read_coming(shard: Shard, partitions: list[int], now_ms: int, until_ms: int, status: Status) -> None:
    """Planned runs, each job's next time, and the times after that one where there are not too many jobs to ask."""
    values: dict[str, Value] = {"partitions": partitions, "from_at": now_ms, "to_at": until_ms, "rows_max": JOBS_MAX}
    for second_ms, runs in (await shard.execute("status_planned", values, TIMEOUT_MS)).rows:
        status.coming[int(second_ms)] += runs
    next_times: dict[int, int] = dict((await shard.execute("status_coming", values, TIMEOUT_MS)).rows)
    status.coming.update(next_times)
    if sum(next_times.values()) > JOBS_MAX:
        status.complete = False
        return
    for next_run_at_ms, stored in (await shard.execute("status_definitions", values, TIMEOUT_MS)).rows:
        status.coming.update(_times_after(Definition.salvage(stored), next_run_at_ms, until_ms))


def _times_after(definition: Definition, at_ms: int, until_ms: int) -> list[int]:
    if not isinstance(definition.schedule, Cron):
        return []
    try:
        times = next_n_times(definition.schedule, at_ms, (until_ms - at_ms) // 1000 + 1)
    except CallerError:  # its zone is gone: the planner sets it aside
        return []
    return [time_ms for time_ms in times if time_ms <= until_ms]
