"""A fleet to break: MySQL servers of its own, proxies before them, whole engines, a receiver that counts.

Everything is a real process; a fault is a signal to one of those that were started here, or something a proxy does. At
the end of each test stands ``check``: nothing lost, one outcome for every scheduled time, and a call twice only where
an attempt had started.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from asyncmy.errors import MySQLError

from engine.commands.audit import audit, lines
from engine.commands.migrate import migrate
from engine.config import Dsn, Settings
from engine.errors import CommitUnknown, Conflict, StoreUnavailable
from engine.local.mysqld import MIB
from engine.local.receiver import Receiver
from engine.local.record import Call
from engine.model import (
    Cron,
    Definition,
    HttpTarget,
    Priority,
    RetryPolicy,
    RunAt,
    RunState,
    idempotency_key,
    partition_of,
)
from engine.settings import keys_of
from engine.stages.days import DAY_MS, TABLES
from engine.store.connection import Connection, Duplicate, Row
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from engine.store.shard import Shard
from engine.store.tenants import create_tenant
from tests.support.breakable import BreakableServer, disk_library
from tests.support.engines import READY_S, Engine
from tests.support.mysql import query, server_folder
from tests.support.proxy import Proxy
from tests.support.wait import until

Change = Callable[[Shard, JobRow | None], Awaitable[object]]

# Of a user that may not do everything.
HALF = "half_alive"

PARTITIONS = 16
# Longer ago than runs are kept.
OLD_DAYS = 40
JOBS_PER_TRANSACTION = 1_000
# A batch of outcomes gathers for 60 ms.
LET_THEM_LOCK_S = 0.1
# A machine that runs other things as well must not decide whether nothing is lost.
FINAL_S = 60.0


@contextmanager
def two_servers() -> Iterator[list[BreakableServer]]:
    """Two servers for a module's tests; each may be killed and started again."""
    with server_folder() as folder:
        sizes = {"buffer_pool_bytes": 128 * MIB, "redo_log_bytes": 100 * MIB}
        library = disk_library(folder)
        servers = [BreakableServer(folder / f"s{number}", library, **sizes, say=lambda line: None) for number in (1, 2)]
        try:
            for server in servers:
                server.launch()
            for server in servers:
                server.wait_ready()
            yield servers
        finally:
            for server in servers:
                server.stop(0)


class Run(NamedTuple):
    """A run's row, as far as a check needs it."""

    job_id: int
    scheduled_at_ms: int
    state: RunState
    attempt: int
    tries: int


class Verdict(NamedTuple):
    """What became of a set of runs. ``recovery_ms``: the longest that a run was answered after its second, or after the
    fault where that came later, or after all were created."""

    fault: str
    faults: int
    runs: int
    calls: int
    lost: int
    duplicates: int
    recovery_ms: int

    def __str__(self) -> str:
        return "{}: {} faults · {} runs · {} calls · {} lost · {} duplicates · recovered in {} ms".format(*self)


class Fleet:
    """Two shards of their own databases, a tenant, a receiver; engines are started by the test."""

    def __init__(
        self, folder: Path, servers: Sequence[BreakableServer], dsns: Sequence[Dsn], proxies: Sequence[Proxy]
    ) -> None:
        self.servers = list(servers)
        self.dsns = list(dsns)
        self.proxies = list(proxies)
        self.receiver = Receiver(folder / "receiver.log")
        self.engines: list[Engine] = []
        self.began_ms = now_ms()
        self._folder = folder
        self._expected: dict[tuple[int, int], str] = {}
        self._named = 0
        self._created_ms = 0
        self.tenant_id = asyncio.run(_tenant(dsns[0]))

    def engine(self, *flags: str, wait: bool = True, clock_off_ms: int = 0) -> Engine:
        """Another engine on the same shards, through their proxies."""
        dsns = [proxy.dsn(dsn) for proxy, dsn in zip(self.proxies, self.dsns, strict=True)]
        engine = Engine(self._folder / f"engine-{len(self.engines)}.log", dsns, flags, clock_off_ms)
        self.engines.append(engine)
        engine.start()
        if wait:
            until(engine.ready, READY_S)
            self.until_owned()
        return engine

    def engine_that_cannot_read(self, table: str) -> Engine:
        """An engine that may do all but touch this table: its heart beats, and what needs the table fails."""
        asked = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        for dsn in self.dsns:
            self.rows_of(dsn, f"CREATE USER IF NOT EXISTS {HALF}@localhost")
            for (name,) in self.rows_of(dsn, asked):
                if name != table:
                    self.rows_of(dsn, f"GRANT ALL ON {dsn.database}.{name} TO {HALF}@localhost")
        engine = Engine(self._folder / "half-alive.log", [replace(dsn, user=HALF) for dsn in self.dsns], (), 0)
        self.engines.append(engine)
        engine.start()
        until(lambda: len(engine.told("lease.partitions")) >= 2 * len(self.dsns), READY_S)
        return engine

    def until_owned(self) -> None:
        """Every partition has a live owner, and no live worker goes without."""
        until(lambda: all(self._owned(dsn) for dsn in self.dsns), READY_S)

    def _owned(self, dsn: Dsn) -> bool:
        live = "w.lease_until > UNIX_TIMESTAMP(SYSDATE(3)) * 1000"
        held = self.rows_of(dsn, f"SELECT l.worker_id FROM leases l JOIN workers w USING (worker_id) WHERE {live}")
        workers = self.rows_of(dsn, f"SELECT worker_id FROM workers w WHERE {live}")
        return len(held) == PARTITIONS // len(self.dsns) and set(held) == set(workers)

    def jobs(self, count: int, at_ms: int, *, over_s: int = 1, path: str = "/any", **settings: Any) -> list[str]:
        """One-off jobs, spread evenly over seconds from ``at_ms`` on; returns their names."""
        schedules = {name: RunAt(at_ms + n % over_s * 1000) for n, name in enumerate(self._names(count))}
        self._create(schedules, path, settings)
        return list(schedules)

    def every_second(self, count: int, from_ms: int, until_ms: int, path: str = "/any", **settings: Any) -> None:
        """Jobs that run each second in [from, until]."""
        schedule = Cron("* * * * * *", start_at_ms=from_ms, end_at_ms=until_ms)
        self._create(dict.fromkeys(self._names(count), schedule), path, settings)

    def _names(self, count: int) -> list[str]:
        """New ones: a name stays taken also where its job's creation was cut short."""
        first = self._named
        self._named += count
        return [f"job-{number}" for number in range(first, self._named)]

    def load(self, ahead_s: int = 2, over_s: int = 4, per_s: int = 100) -> int:
        """What a fault is met with: single runs, runs of every second, runs that take a while and such that need a
        second try, over some seconds; returns the first."""
        at_ms = second(ahead_s)
        self.jobs(per_s * over_s // 2, at_ms, over_s=over_s)
        self.jobs(per_s * over_s // 8, at_ms, over_s=over_s, path="/slow?ms=300")
        self.jobs(per_s * over_s // 8, at_ms, over_s=over_s, path="/flaky?n=1")
        self.every_second(per_s // 4, at_ms, at_ms + (over_s - 1) * 1000)
        return at_ms

    def create_unwatched(
        self, schedules: Mapping[str, RunAt | Cron], path: str = "/any", settings: Mapping[str, Any] | None = None
    ) -> None:
        """Jobs that a test will change: what becomes of them is for the audit to say."""
        watched = dict(self._expected)
        self._create(schedules, path, settings or {})
        self._expected = watched

    def create_repeated(self, schedules: Mapping[str, RunAt | Cron]) -> None:
        """Jobs made as a caller does it whose answer may be lost: looked for, and made again where they are not."""
        for name, schedule in schedules.items():
            self.change_repeated(name, partial(_create_once, new=self.new_job(name, schedule)))

    def new_job(self, name: str, schedule: RunAt | Cron | int, **settings: Any) -> NewJob:
        """A job that nobody has created yet; its one time or its schedule."""
        target = HttpTarget(f"{self.receiver.url}/any/{name}")
        definition = Definition(RunAt(schedule) if isinstance(schedule, int) else schedule, target, **settings)
        return NewJob(self.tenant_id, name, partition_of(self.tenant_id, name, PARTITIONS), definition, False)

    def change_repeated(self, name: str, change: Change) -> None:
        """Change a job, or create it; again where the answer was lost."""
        asyncio.run(_repeated(self.through(name), (self.tenant_id, name), change))

    def through(self, name: str) -> Dsn:
        """The shard of a job by way of its proxy."""
        index = self.shard_of(name)
        return self.proxies[index].dsn(self.dsns[index])

    def shard_of(self, name: str) -> int:
        return partition_of(self.tenant_id, name, PARTITIONS) % len(self.dsns)

    def _create(self, schedules: Mapping[str, RunAt | Cron], path: str, settings: Mapping[str, Any]) -> None:
        settings = {"retry": RetryPolicy(backoff_ms=500), "timeout_ms": 10_000, "priority": Priority.NORMAL, **settings}
        by_shard: dict[int, list[NewJob]] = defaultdict(list)
        for name, schedule in schedules.items():
            route, _, asked = path.partition("?")
            target = HttpTarget(f"{self.receiver.url}{route}/{name}?{asked}")
            definition = Definition(schedule=schedule, target=target, **settings)
            partition_id = partition_of(self.tenant_id, name, PARTITIONS)
            by_shard[self.shard_of(name)].append(NewJob(self.tenant_id, name, partition_id, definition, False))
        for index, jobs in by_shard.items():
            for row, schedule in asyncio.run(_create(self.dsns[index], jobs)):
                for at_ms in _times(schedule, row.next_run_at_ms):
                    self._expected[row.job_id, at_ms] = row.name
        self._created_ms = now_ms()

    def rows(self, sql: str) -> list[Row]:
        """What a query finds on all shards together, past the proxies."""
        return [row for dsn in self.dsns for row in self.rows_of(dsn, sql)]

    def rows_of(self, dsn: Dsn, sql: str) -> list[Row]:
        return asyncio.run(query(dsn, sql))

    def kill_sessions(self, dsn: Dsn, sessions: Sequence[int]) -> int:
        """Break these connections from the server's side; returns how many there still were."""
        killed = 0
        for session in sessions:
            with suppress(MySQLError):
                self.rows_of(dsn, f"KILL {session}")
                killed += 1
        return killed

    def hold_locks(self, table: str, seconds: float) -> int:
        """Lock a table's rows on every shard, backwards, for a moment; deadlocks are part of it."""
        return asyncio.run(_hold_locks(self.dsns, table, seconds))

    def lock_backwards(self) -> None:
        """Lock what is deferred and then its runs, against the order that everybody else keeps."""
        for dsn in self.dsns:
            asyncio.run(_lock_backwards(dsn))

    def deadlocks(self) -> int:
        """How many the servers have broken so far."""
        counted = "SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        return sum(row[0] for row in self.rows(counted))

    def make_old_day(self) -> int:
        """A day of every table that is older than the retention; returns its end. To be made before an engine is."""
        until_ms = now_ms() // DAY_MS * DAY_MS - OLD_DAYS * DAY_MS
        for table in TABLES:
            pieces = f"PARTITION day_start VALUES LESS THAN (0), PARTITION d_old VALUES LESS THAN ({until_ms})"
            self.rows(f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})")
        return until_ms

    @contextmanager
    def idle_transaction(self, sql: str) -> Iterator[None]:
        """A transaction on every shard that has run this and then says nothing."""
        with asyncio.Runner() as runner:
            sessions = [runner.run(_begun(dsn, sql)) for dsn in self.dsns]
            try:
                yield
            finally:
                for session in sessions:
                    runner.run(session.close())

    @contextmanager
    def read_only(self, index: int) -> Iterator[None]:
        """A server that answers and takes no writes, as after a failover to a wrong machine."""
        self.rows_of(self.dsns[index], "SET GLOBAL super_read_only = ON")
        try:
            yield
        finally:
            self.rows_of(self.dsns[index], "SET GLOBAL super_read_only = OFF")
            self.rows_of(self.dsns[index], "SET GLOBAL read_only = OFF")

    def runs(self) -> list[Run]:
        rows = self.rows("SELECT job_id, scheduled_at, state, attempt, tries FROM runs WHERE state <> 8")
        return [Run(row[0], row[1], RunState(row[2]), *row[3:]) for row in rows]

    def unfinished(self) -> int | None:
        """How many runs are open, and jobs due, that have not ended; None while a shard is away."""
        open_runs = "SELECT COUNT(*) FROM runs WHERE state IN (2, 3)"
        due_jobs = "SELECT COUNT(*) FROM jobs WHERE state = 1 AND next_run_at IS NOT NULL"
        try:
            return sum(row[0] for sql in (open_runs, due_jobs) for row in self.rows(sql))
        except StoreUnavailable:
            return None

    def until_final(self, seconds: float = FINAL_S) -> None:
        """Every run that was asked for has ended."""
        until(lambda: self.unfinished() == 0 or self._dead(), seconds)

    def _dead(self) -> None:
        """A supervisor that gave up says why, at once instead of at the deadline."""
        ended = [engine for engine in self.engines if engine._process.poll() not in (None, 0, -signal.SIGKILL)]
        assert not ended, ended[0].tail()

    def check(
        self,
        fault: str,
        fault_at_ms: int,
        faults: int = 1,
        seconds: float = FINAL_S,
        may_fail: Engine | None = None,
    ) -> Verdict:
        """Wait for the end of every run; then nothing is lost, nothing early, and every second call had its reason.
        Stages of ours have met nothing that they do not know, but for those of an engine that was made so."""
        self.until_final(seconds)
        runs = {(run.job_id, run.scheduled_at_ms): run for run in self.runs()}
        calls = self.receiver.calls()
        lost = self._lost(runs, calls)
        doubles = check_calls(runs, calls)
        result = asyncio.run(audit(self.dsns, self.began_ms, None, 30_000))
        recovered_ms = recovery_ms(calls, max(fault_at_ms, self._created_ms))
        verdict = Verdict(fault, faults, len(runs), len(calls), len(lost), doubles, recovered_ms)
        print(verdict)
        assert not lost, (verdict, lost[:5])
        assert result.flawless, "\n".join(lines(result))
        assert result.tally.open == 0
        failed = [engine for engine in self.engines if engine is not may_fail and engine.told("stage.failed")]
        assert not failed, self._failures()
        return verdict

    def _lost(self, runs: Mapping[tuple[int, int], Run], calls: Sequence[Call]) -> list[str]:
        """Runs that did not end well, or of which the receiver knows nothing."""
        answered = {call.key for call in calls if call.answered_well}
        wrong = []
        for (job_id, at_ms), name in self._expected.items():
            run = runs.get((job_id, at_ms))
            if run is None or run.state != RunState.SUCCEEDED or idempotency_key(job_id, at_ms) not in answered:
                wrong.append(f"{name} at {at_ms}: {run}")
        return wrong

    def _failures(self) -> str:
        failures = [event for engine in self.engines for event in engine.told("stage.failed")]
        return "\n".join(f"{event['process']} {event['stage']}: {event['error']}" for event in failures[:10])

    def end(self) -> None:
        for engine in self.engines:
            if engine.running:
                engine.signal(signal.SIGCONT)
                engine.kill_all()


def check_calls(runs: Mapping[tuple[int, int], Run], calls: Sequence[Call]) -> int:
    """No call before its second; each attempt called at most once, and counted as a try. Returns the calls beyond the
    first of each run."""
    by_key = {idempotency_key(job_id, at_ms): run for (job_id, at_ms), run in runs.items()}
    early = [call for call in calls if call.arrival_ms < call.scheduled_at_ms]
    assert not early, early[:5]
    attempts: Counter[tuple[str, int]] = Counter((call.key, call.attempt) for call in calls)
    assert max(attempts.values(), default=1) == 1, attempts.most_common(5)
    per_key = Counter(call.key for call in calls)
    uncounted = [
        (key, count, by_key.get(key))
        for key, count in per_key.items()
        if key not in by_key or count > by_key[key].tries
    ]
    assert not uncounted, uncounted[:5]
    return len(calls) - len(per_key)


def recovery_ms(calls: Sequence[Call], fault_at_ms: int) -> int:
    """The longest that anything took to be answered, once it was due and the fault was there."""
    answered: dict[str, int] = {}
    for call in calls:
        if call.answered_well and call.arrival_ms >= fault_at_ms:
            late_ms = call.arrival_ms - max(call.scheduled_at_ms, fault_at_ms)
            answered[call.key] = min(answered.get(call.key, late_ms), late_ms)
    return max(answered.values(), default=0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def second(ahead_s: int) -> int:
    """A whole second so far from now, in milliseconds."""
    return (now_ms() // 1000 + ahead_s) * 1000


def sleep_until(at_ms: int) -> None:
    """A fault at a moment of its own: in the middle of something that takes a while."""
    until(lambda: now_ms() >= at_ms, max(1.0, (at_ms - now_ms()) / 1000 + 1))


@contextmanager
def fleet_of(servers: Sequence[BreakableServer], name: str) -> Iterator[Fleet]:
    """A clean fleet on these servers, its engines ended afterwards."""
    dsns = [server.dsn(name) for server in servers]
    asyncio.run(migrate(dsns, keys_of(Settings()), PARTITIONS))
    with server_folder() as folder, ExitStack() as started:
        targets = [Path(str(dsn.unix_socket)) for dsn in dsns]
        proxies = [
            started.enter_context(Proxy(folder / f"proxy-{number}", target)) for number, target in enumerate(targets)
        ]
        fleet = Fleet(folder, servers, dsns, proxies)
        started.enter_context(fleet.receiver)
        started.callback(fleet.end)
        yield fleet
    for dsn in dsns:
        asyncio.run(query(dsn, f"DROP DATABASE {name}"))


async def _create_once(shard: Shard, there: JobRow | None, new: NewJob) -> None:
    if there is None:
        await create_jobs(shard, [new])


async def _repeated(dsn: Dsn, name: tuple[int, str], change: Change) -> None:
    """Until an answer came. A job is looked for before each try: what was not answered may have been done."""
    shard = Shard(dsn, 0, keys=keys_of(Settings()))
    try:
        while True:
            try:
                job = (await find_jobs(shard, [name])).get(name)
                await change(shard, job)
            except (CommitUnknown, Duplicate):
                continue
            return
    finally:
        await shard.close()


async def _lock_backwards(dsn: Dsn) -> None:
    connection = await _begun(dsn, "SELECT * FROM deferred ORDER BY partition_id DESC FOR UPDATE")
    try:
        await asyncio.sleep(LET_THEM_LOCK_S)
        await connection.run(b"SELECT * FROM runs WHERE state = 2 ORDER BY scheduled_at DESC FOR UPDATE")
    except Conflict:
        pass  # it is we who were chosen
    finally:
        await connection.close()


async def _begun(dsn: Dsn, sql: str) -> Connection:
    connection = await Connection.open(dsn, int(FINAL_S))
    connection.begin()
    await connection.run(sql.encode())
    return connection


async def _hold_locks(dsns: Sequence[Dsn], table: str, seconds: float) -> int:
    held = 0
    for dsn in dsns:
        with suppress(Conflict):
            connection = await _begun(dsn, f"SELECT * FROM {table} ORDER BY partition_id DESC LIMIT 500 FOR UPDATE")
            await asyncio.sleep(seconds)
            await connection.close()
            held += 1
    return held


async def _tenant(dsn: Dsn) -> int:
    shard = Shard(dsn, 0, keys=keys_of(Settings()))
    try:
        return (await create_tenant(shard, "broken")).tenant_id
    finally:
        await shard.close()


async def _create(dsn: Dsn, jobs: Sequence[NewJob]) -> list[tuple[JobRow, RunAt | Cron]]:
    shard = Shard(dsn, 0, keys=keys_of(Settings()))
    try:
        rows: list[JobRow] = []
        for first in range(0, len(jobs), JOBS_PER_TRANSACTION):
            rows += await create_jobs(shard, jobs[first : first + JOBS_PER_TRANSACTION])
        return [(row, job.definition.schedule) for row, job in zip(rows, jobs, strict=True)]
    finally:
        await shard.close()


def _times(schedule: RunAt | Cron, first_ms: int | None) -> list[int]:
    """All of them, from the first one that its creation was in time for."""
    if isinstance(schedule, RunAt):
        return [schedule.run_at_ms]
    return [] if first_ms is None else list(range(first_ms, (schedule.end_at_ms or 0) + 1, 1000))
