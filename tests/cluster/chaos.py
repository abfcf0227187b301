"""All faults at random, from a printed seed: ``python -m tests.cluster.chaos SECONDS [--seed N] [--due N]``.

It opens with many runs due in one second while every statement takes 20 ms more. Then two engines on two shards work
off a steady load while processes are killed and stopped, servers die, disks fill up, networks break, clocks are
stepped, locks are held and jobs are changed. At the end everything is healed, and then nothing may be lost: the exit
status is 1 if anything is, or if the audit finds a time without exactly one outcome.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from engine.config import Settings
from engine.errors import Conflict, StoreUnavailable
from engine.model import Cron, Overlap, RetryPolicy
from engine.settings import keys_of
from engine.store.jobs import JobRow
from engine.store.shard import Shard
from tests.cluster.chaos_changes import changed, delete, edit, pause_or_resume, put
from tests.support.engines import Engine
from tests.support.fleet import Fleet, fleet_of, now_ms, second, sleep_until, two_servers
from tests.support.proxy import KINDS

# A run may meet many faults; it is the schedule that is tested here, not how soon a run gives up.
TRIES_MAX = 100
PATIENT = RetryPolicy(max_attempts=TRIES_MAX, backoff_ms=200, max_backoff_ms=1_000)
RUNS_PER_S = 40
CHANGED_JOBS = 6
AT_ONCE_MAX = 3
CHILDREN = ("executor-0", "executor-1", "keeper")
HEALED_S = 300.0
OPENING_S = 600.0
FOREVER_MS = 1 << 62

# A black hole lasts longer than a call waits for its answer: what was given up then arrives all the same when the
# network is back. A shard may be away for half a minute.
LASTS_MS_MAX = {"black_hole": 14_000, "unreachable_shard": 30_000}

SLOW_MS = 20
CLOCK_OFF_MS = 90_000

# What a server is needed for while it lasts.
NEED_A_SERVER = ("hold_locks", "idle_transaction", "read_only_shard", "full_disk")

SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()"

Undo = Callable[[], None]


class Lasting(NamedTuple):
    """A fault that goes on until it is undone."""

    name: str
    until_ms: int
    undo: Undo


class Chaos:
    """Faults on one fleet. Each method that starts with ``do_`` begins one, or returns None where it cannot now."""

    def __init__(self, fleet: Fleet, draw: random.Random) -> None:
        self.fleet = fleet
        self.faults: Counter[str] = Counter()
        self._draw = draw
        self._lasting: list[Lasting] = []
        self._put = 0
        self._began_ms = now_ms()
        self._deeds = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]

    def run(self, seconds: float) -> None:
        """Faults for so long, with load and changes beside them; then everything is healed."""
        ends_ms, loaded_ms = now_ms() + int(seconds * 1000), second(2)
        changed = self._changed_jobs(ends_ms)
        while now_ms() < ends_ms:
            loaded_ms = self._load(max(loaded_ms, second(2)), ends_ms)
            self._heal(now_ms())
            self._change(changed)
            if len(self._lasting) < AT_ONCE_MAX:
                self._begin(self._draw.choice(self._deeds))
            sleep_until(now_ms() + int(self._draw.uniform(100, 1_200)))
        self._heal(FOREVER_MS)
        for engine in self.fleet.engines:
            if not engine.running:
                engine.start()
        for name in changed:
            self._until_done(name)

    def open_slowly(self, due: int) -> None:
        """So many runs due in one second, and every statement slow."""
        self.faults["slow_statements_with_many_due"] += 1
        for proxy in self.fleet.proxies:
            proxy.delay_ms = SLOW_MS
        # Room to create them at a few thousand a second; they are planned meanwhile.
        at_ms = second(10 + due // 1_000)
        self.fleet.jobs(due, at_ms, retry=PATIENT)
        late_ms = max(0, now_ms() - at_ms)
        sleep_until(at_ms)
        self.fleet.until_final(OPENING_S)
        last_ms = max((call.arrival_ms for call in self.fleet.receiver.calls()), default=at_ms)
        print(
            f"{due} due in one second, {SLOW_MS} ms more for each statement: the last called after {last_ms - at_ms} ms"
            f" (created {late_ms} ms too late)",
            flush=True,
        )
        for proxy in self.fleet.proxies:
            proxy.delay_ms = 0

    def _begin(self, deed: Callable[[], Undo | None]) -> None:
        name = deed.__name__.removeprefix("do_")
        lasts_ms = int(self._draw.uniform(300, LASTS_MS_MAX.get(name, 5_000)))
        undo = deed()
        if undo is not None:
            self.faults[name] += 1
            print(f"{(now_ms() - self._began_ms) / 1000:7.1f} s  {name}", flush=True)
            self._lasting.append(Lasting(name, now_ms() + lasts_ms, undo))

    def _heal(self, at_ms: int) -> None:
        for lasting in [lasting for lasting in self._lasting if lasting.until_ms <= at_ms]:
            lasting.undo()
            self._lasting.remove(lasting)

    def _active(self, *names: str) -> bool:
        return any(lasting.name in names for lasting in self._lasting)

    def _load(self, from_ms: int, ends_ms: int) -> int:
        """Runs of the next seconds; returns where the following ones begin."""
        over_s = 3
        if from_ms > second(4) or from_ms > ends_ms:
            return from_ms
        paths = ("/any", "/any", "/slow?ms=200", "/flaky?n=1")
        path = self._draw.choice(paths)
        with suppress(StoreUnavailable, Conflict):
            self.fleet.jobs(RUNS_PER_S * over_s, from_ms, over_s=over_s, path=path, retry=PATIENT)
        return from_ms + over_s * 1000

    def _changed_jobs(self, ends_ms: int) -> list[str]:
        """Jobs that are edited, paused and resumed meanwhile; the audit knows what should become of them."""
        overlaps = [Overlap.ALLOW, Overlap.SKIP, Overlap.WAIT]
        names = [f"changed-{number}" for number in range(CHANGED_JOBS)]
        for number, name in enumerate(names):
            schedule = Cron("* * * * * *", start_at_ms=second(2), end_at_ms=ends_ms)
            settings = {"overlap": overlaps[number % 3], "retry": RetryPolicy(max_attempts=TRIES_MAX, backoff_ms=200)}
            self.fleet.create_unwatched({name: schedule}, "/slow?ms=100", settings)
        return names

    def _change(self, names: list[str]) -> None:
        name = self._draw.choice(names)
        verb = self._draw.choice((edit, pause_or_resume, pause_or_resume, put))
        if verb is put:
            self._put += 1
            name = f"put-{self._put}"
        seconds = self._draw.randint(1, 3)
        self._changing(
            name, lambda shard, job: verb(shard, job, self.fleet.new_job(name, second(seconds), retry=PATIENT), seconds)
        )

    def _until_done(self, name: str) -> None:
        while not self._changing(name, delete):
            sleep_until(now_ms() + 100)

    def _changing(self, name: str, change: Callable[[Shard, JobRow | None], object]) -> bool:
        # As everybody else, through what breaks; but nobody waits here for a network that is gone.
        is_gone = self._active("unreachable_shard", "black_hole")
        dsn = self.fleet.dsns[self.fleet.shard_of(name)] if is_gone else self.fleet.through(name)
        try:
            shard = Shard(dsn, 0, keys=keys_of(Settings()))
            asyncio.run(changed(shard, (self.fleet.tenant_id, name), change))
        except (StoreUnavailable, Conflict):
            return False
        return True

    def _engine(self) -> Engine | None:
        running = [engine for engine in self.fleet.engines if engine.running]
        return self._draw.choice(running) if running else None

    def _child(self) -> tuple[Engine, int] | None:
        engine = self._engine()
        pid = engine.children().get(self._draw.choice(CHILDREN)) if engine else None
        return (engine, pid) if engine and pid else None

    def do_kill_a_process(self) -> Undo | None:
        child = self._child()
        if child is None:
            return None
        _send(child[1], signal.SIGKILL)
        return _nothing

    def do_stop_a_process(self) -> Undo | None:
        child = self._child()
        if child is None:
            return None
        engine, pid = child

        def wake() -> None:
            if engine.running and pid in engine.children().values():
                _send(pid, signal.SIGCONT)

        _send(pid, signal.SIGSTOP)
        return wake

    def do_kill_an_engine(self) -> Undo | None:
        engine = self._engine()
        if engine is None:
            return None
        engine.kill_all()
        return engine.start

    def do_stop_an_engine(self) -> Undo | None:
        engine = self._engine()
        if engine is None or self._active("stop_a_process", "stop_an_engine"):
            return None
        engine.signal(signal.SIGTERM)

        def start() -> None:
            engine.stop()
            engine.start()

        return start

    def do_roll_an_engine(self) -> Undo | None:
        engine = self._engine()
        if engine is None:
            return None
        engine.signal(signal.SIGHUP)
        return _nothing

    def do_kill_a_server(self) -> Undo | None:
        if self._active(*NEED_A_SERVER, "kill_a_server", "kill_everything"):
            return None
        server = self._draw.choice(self.fleet.servers)
        os.kill(server.pid, signal.SIGKILL)

        def start() -> None:
            server.stop()
            server.start()

        return start

    def do_kill_everything(self) -> Undo | None:
        if self._lasting:
            return None
        for engine in self.fleet.engines:
            engine.kill_all()
        for server in self.fleet.servers:
            os.kill(server.pid, signal.SIGKILL)

        def start() -> None:
            for server in self.fleet.servers:
                server.stop()
                server.start()
            for engine in self.fleet.engines:
                engine.start()

        return start

    def do_full_disk(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything", "full_disk"):
            return None
        disk = self._draw.choice(self.fleet.servers).full_disk()
        disk.__enter__()
        return lambda: disk.__exit__(None, None, None) and None

    def do_step_a_clock(self) -> Undo | None:
        clock = self._draw.choice(self.fleet.engines).clock
        clock.set(self._draw.choice((-CLOCK_OFF_MS, CLOCK_OFF_MS)))
        return lambda: clock.set(0)

    def do_unreachable_shard(self) -> Undo | None:
        return self._on_network(lambda proxy: proxy.refuse())

    def do_black_hole(self) -> Undo | None:
        return self._on_network(lambda proxy: proxy.swallow())

    def _on_network(self, breaks: Callable[[object], None]) -> Undo | None:
        if self._active("unreachable_shard", "black_hole"):
            return None
        proxies = self._draw.choice([self.fleet.proxies[:1], self.fleet.proxies[1:], self.fleet.proxies])
        for proxy in proxies:
            breaks(proxy)
        return lambda: [proxy.heal() for proxy in proxies] and None

    def do_slow_network(self) -> Undo | None:
        proxy = self._draw.choice(self.fleet.proxies)
        proxy.delay_ms = self._draw.choice((5, 20, 60))
        return lambda: setattr(proxy, "delay_ms", 0)

    def do_cut_connections(self) -> Undo | None:
        self._draw.choice(self.fleet.proxies).cut_all()
        return _nothing

    def do_cut_at_a_commit(self) -> Undo | None:
        proxy = self._draw.choice(self.fleet.proxies)
        before = self._draw.random() < 0.5
        proxy.cut(self._draw.choice(KINDS), before=before, times=self._draw.randint(1, 4))
        return proxy.cuts.clear

    def do_hold_locks(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything", "full_disk"):
            return None
        table = self._draw.choice(("deferred", "runs", "jobs", "marks", "leases"))
        with suppress(StoreUnavailable):
            self.fleet.hold_locks(table, self._draw.uniform(0.1, 1.0))
        return _nothing

    def do_deadlocks(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything", "full_disk"):
            return None
        with suppress(StoreUnavailable, Conflict):
            self.fleet.lock_backwards()
        return _nothing

    def do_kill_connections(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything"):
            return None
        dsn = self._draw.choice(self.fleet.dsns)
        with suppress(StoreUnavailable):
            ids = [row[0] for row in self.fleet.rows_of(dsn, SESSIONS.format(dsn.database))]
            self.fleet.kill_sessions(dsn, self._draw.sample(ids, len(ids) // 2))
        return _nothing

    def do_idle_transaction(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything", "full_disk", "idle_transaction"):
            return None
        table = self._draw.choice(("deferred", "jobs", "runs"))
        idle = self.fleet.idle_transaction(f"SELECT * FROM {table} ORDER BY job_id LIMIT 50 FOR UPDATE")
        try:
            idle.__enter__()
        except (StoreUnavailable, Conflict):
            return None
        return lambda: idle.__exit__(None, None, None) and None

    def do_read_only_shard(self) -> Undo | None:
        if self._active("kill_a_server", "kill_everything", "full_disk", "read_only_shard"):
            return None
        index = self._draw.randrange(len(self.fleet.dsns))
        try:
            read_only = self.fleet.read_only(index)
            read_only.__enter__()
        except StoreUnavailable:
            return None
        return lambda: read_only.__exit__(None, None, None) and None


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself meanwhile
        os.kill(pid, number)


def _nothing() -> None:
    """What is over at once needs no undoing."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="All faults at random; exit status 1 if anything is lost.")
    parser.add_argument("seconds", type=float, nargs="?", default=60)
    parser.add_argument("--due", type=int, default=2_000, help="runs due in one second at the beginning")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    print(f"seed {seed}: {args.seconds:g} s", flush=True)
    with two_servers() as servers, fleet_of(servers, "chaos") as fleet:
        fleet.engine()
        fleet.engine()
        chaos = Chaos(fleet, random.Random(seed))
        chaos.open_slowly(args.due)
        chaos.run(args.seconds)
        healed_ms = now_ms()
        print("healed; waiting for every run to end", flush=True)
        try:
            fleet.check(f"chaos of seed {seed}", healed_ms, sum(chaos.faults.values()), seconds=HEALED_S)
        except AssertionError as error:
            print(f"failed, seed {seed}: {error}", file=sys.stderr)
            return 1
    print(*(f"{count:5} {name.replace('_', ' ')}" for name, count in sorted(chaos.faults.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
