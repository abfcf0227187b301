"""What a peak is made of: jobs for one coming second, plain, over many TLS origins, or as on a Monday morning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from bench.world import Job
from engine.local.nginx import Sink
from engine.local.record import Run
from engine.model import Cron, Definition, HttpTarget, Priority, RunAt

MINUTE_MS = 60_000
TIMEOUT_MS, DEAD_TIMEOUT_MS = 30_000, 5_000
SEED = 9

# A morning: what share of jobs is of each kind, and what the largest tenants hold.
MORNING_TENANTS, MORNING_JOBS = 1_000, 50_000
LARGEST_TENANTS, LARGEST_SHARE = 10, 0.40
ON_THE_HOUR = 0.80
AROUND_S = 30
SLOW, FLAKY, DEAD = 0.02, 0.01, 0.005
PRIORITIES = {Priority.CRITICAL: 0.02, Priority.HIGH: 0.08, Priority.NORMAL: 0.80, Priority.LOW: 0.10}


class Load(NamedTuple):
    """Jobs, and the runs of them that a receiver must see: of those that call a dead endpoint it can see none."""

    jobs: list[Job]
    expected: list[Run]
    at_ms: int
    last_ms: int


class Origins(NamedTuple):
    """Where jobs call: the n-th origin of the receiver, and an address where nobody ever answers."""

    url: Callable[[int], str]
    dead_url: str


def burst(
    tenant_ids: Sequence[int], origins: Origins, at_ms: int, runs: int, critical: int = 0, origin_count: int = 1
) -> Load:
    """So many jobs for one second, spread evenly over tenants and origins, and the critical ones among the others."""
    every = runs // critical if critical else runs + 1
    jobs, left = [], critical
    for number in range(runs):
        urgent = left > 0 and number % every == 0
        left -= urgent
        priority = Priority.CRITICAL if urgent else Priority.NORMAL
        name = f"{priority.name.lower()}-{number}"
        target = HttpTarget(f"{origins.url(number % origin_count)}/{name}")
        tenant_id = tenant_ids[number % len(tenant_ids)]
        jobs.append(Job(tenant_id, name, Definition(RunAt(at_ms), target, priority=priority)))
    return Load(jobs, [(job.name, at_ms) for job in jobs], at_ms, at_ms)


def late_beside(tenant_ids: Sequence[int], origins: Origins, at_ms: int, runs: int, late: int, late_ms: int) -> Load:
    """So many jobs for one second, spread evenly over the priorities, and a backlog of so many of long before it."""
    backlog = burst(tenant_ids, origins, at_ms - late_ms, late)
    jobs = [_named(job, f"late-{number}", origins) for number, job in enumerate(backlog.jobs)]
    expected = [(job.name, backlog.at_ms) for job in jobs]
    for number, job in enumerate(burst(tenant_ids, origins, at_ms, runs).jobs):
        priority = Priority(number % len(Priority))
        named = _named(job, f"{priority.name.lower()}-{number}", origins)
        jobs.append(named._replace(definition=replace(named.definition, priority=priority)))
        expected.append((named.name, at_ms))
    return Load(jobs, expected, at_ms, at_ms)


def _named(job: Job, name: str, origins: Origins) -> Job:
    target = HttpTarget(f"{origins.url(0)}/{name}")
    return Job(job.tenant_id, name, replace(job.definition, target=target))


def every_second(tenant_id: int, origins: Origins, at_ms: int, seconds: int) -> Load:
    """One cron job that is due in each of so many seconds."""
    last_ms = at_ms + (seconds - 1) * 1000
    schedule = Cron("* * * * * *", start_at_ms=at_ms, end_at_ms=last_ms)
    job = Job(tenant_id, "normal-idle", Definition(schedule, HttpTarget(f"{origins.url(0)}/normal-idle")))
    return Load([job], [(job.name, time_ms) for time_ms in range(at_ms, last_ms + 1, 1000)], at_ms, last_ms)


def morning(tenant_ids: Sequence[int], origins: Origins, at_ms: int) -> Load:
    """Cron jobs, most of them at one minute's first second and the rest around it; some endpoints are ill."""
    draw = random.Random(SEED)
    jobs, expected = [], []
    priorities, weights = list(PRIORITIES), list(PRIORITIES.values())
    for number, tenant in enumerate(_owners(draw)):
        due_ms = at_ms
        if draw.random() >= ON_THE_HOUR:
            due_ms += draw.randint(-AROUND_S, AROUND_S) * 1000
        priority = draw.choices(priorities, weights)[0]
        name = f"{priority.name.lower()}-{number}"
        url, timeout_ms = _endpoint(draw.random(), origins, tenant)
        definition = Definition(daily(due_ms), HttpTarget(f"{url}/{name}"), priority=priority, timeout_ms=timeout_ms)
        jobs.append(Job(tenant_ids[tenant], name, definition))
        if url != origins.dead_url:
            expected.append((name, due_ms))
    return Load(jobs, expected, at_ms, at_ms + AROUND_S * 1000)


def daily(at_ms: int) -> Cron:
    """Every day at that time."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Cron(f"{at.second} {at.minute} {at.hour} * * *" if at.second else f"{at.minute} {at.hour} * * *")


def origins_of(sink: Sink, dead_port: int, *, tls: bool) -> Origins:
    """Addresses of 127.0.0.0/8, each an origin of its own."""
    scheme, port = ("https", sink.tls_port) if tls else ("http", sink.port)
    return Origins(lambda number: f"{scheme}://{address(number)}:{port}", f"http://127.0.0.1:{dead_port}/dead")


def address(number: int) -> str:
    """The n-th address of this machine that is not 127.0.0.1."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _owners(draw: random.Random) -> Iterator[int]:
    """The tenant of each job."""
    largest = int(MORNING_JOBS * LARGEST_SHARE)
    for number in range(MORNING_JOBS):
        yield number % LARGEST_TENANTS if number < largest else draw.randrange(LARGEST_TENANTS, MORNING_TENANTS)


def _endpoint(share: float, origins: Origins, tenant: int) -> tuple[str, int]:
    """Where a job of this tenant calls, and how long it may take."""
    if share < DEAD:
        return origins.dead_url, DEAD_TIMEOUT_MS
    if share < DEAD + FLAKY:
        return f"{origins.url(tenant)}/flaky", TIMEOUT_MS
    if share < DEAD + FLAKY + SLOW:
        return f"{origins.url(tenant)}/slow", TIMEOUT_MS
    return origins.url(tenant), TIMEOUT_MS
