"""Faults in a real fleet: whatever breaks, every scheduled time has one outcome, and no operator was needed.

Each test lets a few hundred runs meet one fault, waits until all of them have ended, and ends with the audit and the
receiver's own count (``Fleet.check``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count

import pytest

from engine.local.record import Call
from engine.model import Cron, RetryPolicy
from engine.store.changes import Windows, pause_job, resume_job
from tests.support.breakable import BreakableServer
from tests.support.engines import Engine
from tests.support.fleet import Fleet, fleet_of, now_ms, second, sleep_until, two_servers
from tests.support.proxy import CHANGE, CLAIM, PLAN, PUT, SETTLE
from tests.support.wait import until

NUMBERS = count(1)
DEFAULT_LEASES = ("--lease-ms", "10000", "--heartbeat-ms", "2000")
LEASE_MS = 2_000
HOURS_MS = 6 * 3_600_000
CLOCK_OFF_MS = 90_000

# Seconds ahead, seconds, runs a second.
RUNS_2000 = (3, 4, 500)

# The tests share their machine with others: what a figure allows for that, beside what is promised.
MARGIN_MS = 1_000


@pytest.fixture(scope="module")
def servers() -> Iterator[list[BreakableServer]]:
    with two_servers() as started:
        yield started


@pytest.fixture
def fleet(servers: list[BreakableServer]) -> Iterator[Fleet]:
    with fleet_of(servers, f"faults_{next(NUMBERS)}") as fleet:
        yield fleet


def test_p10_a_killed_executor_delays_its_runs_by_less_than_two_seconds(fleet: Fleet) -> None:
    engine = fleet.engine(*DEFAULT_LEASES)
    at_ms = fleet.load(*RUNS_2000)
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    engine.kill("executor-0")
    verdict = fleet.check("kill -9 of an executor", fault_at_ms)
    assert verdict.recovery_ms < 2_000 + MARGIN_MS


def test_p10_a_killed_keeper_comes_back_and_reaps_what_died_without_it(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = fleet.load(*RUNS_2000)
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    engine.kill("keeper")
    engine.kill("executor-1")
    fleet.check("kill -9 of the keeper and an executor", fault_at_ms, 2)
    assert len(engine.told("child.started")) == 5


def test_p10_a_killed_supervisor_takes_its_children_along_and_its_successor_goes_on(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = fleet.load(*RUNS_2000)
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    children = engine.children().values()
    os.kill(engine.pid, signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))
    fleet.engine(wait=False)
    fleet.check("kill -9 of the supervisor", fault_at_ms)


def test_p10_everything_killed_at_once_goes_on_where_it_stopped(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = fleet.load(*RUNS_2000)
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    engine.kill_all()
    for server in fleet.servers:
        os.kill(server.pid, signal.SIGKILL)
    for server in fleet.servers:
        server.stop()
        server.launch()
    engine.start()
    for server in fleet.servers:
        server.wait_ready()
    fleet.check("kill -9 of everything", fault_at_ms, 2 + len(fleet.servers))


def test_p10_the_loss_of_a_whole_host_delays_its_runs_by_less_than_15_seconds(fleet: Fleet) -> None:
    lost = fleet.engine(*DEFAULT_LEASES)
    fleet.engine(*DEFAULT_LEASES)
    at_ms = fleet.load()
    fleet.rows(f"UPDATE workers SET host = 'another host' WHERE pid IN ({pids_of(lost)})")
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    lost.kill_all()
    verdict = fleet.check("loss of a host", fault_at_ms)
    assert verdict.recovery_ms < 15_000 + MARGIN_MS


def pids_of(engine: Engine) -> str:
    return ",".join(str(pid) for pid in engine.children().values())


def test_p3_an_executor_that_was_stopped_past_its_lease_fires_nothing_stale_when_it_wakes(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms + 1_030)
    fault_at_ms, stopped = now_ms(), engine.child("executor-0")
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: engine.told("worker.condemned"))
    until(lambda: engine.told("worker.reaped"))
    woken_at_ms = now_ms()
    os.kill(stopped, signal.SIGCONT)
    fleet.check("SIGSTOP past the lease", fault_at_ms)
    assert engine.told("lease.lost")
    first_attempts = [call for call in fleet.receiver.calls() if call.attempt == 1]
    assert not [call for call in first_attempts if stale(call, fault_at_ms, woken_at_ms)]


def stale(call: Call, stopped_at_ms: int, woken_at_ms: int) -> bool:
    """A first attempt that left long after its second, though its run had been given to others meanwhile."""
    return call.scheduled_at_ms < woken_at_ms - LEASE_MS and call.arrival_ms > woken_at_ms


def test_p10_a_mysqld_killed_under_load_comes_back_and_nothing_is_lost(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    os.kill(fleet.servers[1].pid, signal.SIGKILL)
    fleet.servers[1].stop()
    fleet.servers[1].start()
    fleet.check("kill -9 of mysqld", fault_at_ms)


@pytest.mark.parametrize("away", [[0], [1], [0, 1]], ids=["the first shard", "another shard", "both shards"])
def test_p10_a_shard_that_cannot_be_reached_holds_up_no_other(fleet: Fleet, away: list[int]) -> None:
    fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms - 500)
    fault_at_ms = now_ms()
    for index in away:
        fleet.proxies[index].refuse()
    sleep_until(at_ms + 3_000)
    for index in away:
        fleet.proxies[index].heal()
    fleet.check(f"{len(away)} shards unreachable", fault_at_ms, len(away))
    beside = [call for call in fleet.receiver.calls() if fleet.shard_of(call.name) not in away and call.attempt == 1]
    assert all(call.arrival_ms - call.scheduled_at_ms < 1_000 for call in beside)


def test_p10_an_engine_that_starts_while_its_first_shard_is_away_serves_the_others(fleet: Fleet) -> None:
    fleet.engine().stop()
    fleet.proxies[0].refuse()
    engine = fleet.engine(wait=False)
    until(lambda: engine.told("lease.partitions"))
    at_ms = fleet.load()
    sleep_until(at_ms)
    fleet.proxies[0].heal()
    fleet.check("start without the first shard", at_ms)


@pytest.mark.parametrize("before", [True, False], ids=["that the server never got", "that the server did"])
def test_p1_connections_cut_at_a_commit_leave_no_run_lost_or_doubled(fleet: Fleet, before: bool) -> None:
    fleet.engine()
    cuts = [proxy.cut(kind, before=before, times=2) for proxy in fleet.proxies for kind in (PLAN, CLAIM, SETTLE)]
    at_ms = fleet.load()
    fleet.check("cut at COMMIT", at_ms, sum(cut.times for cut in cuts))
    assert all(cut.done == cut.times for cut in cuts)


def test_p2_a_put_and_a_pause_cut_at_their_commit_and_repeated_have_one_effect(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    names = [f"cut-{number}" for number in range(8)]
    schedule = Cron("* * * * * *", start_at_ms=at_ms, end_at_ms=at_ms + 3_000)
    cuts = [
        proxy.cut(kind, before=before) for proxy in fleet.proxies for kind in (PUT, CHANGE) for before in (True, False)
    ]
    fleet.create_repeated(dict.fromkeys(names, schedule))
    sleep_until(at_ms + 1_500)
    for verb in (pause_job, resume_job):
        for name in names:
            fleet.change_repeated(name, lambda shard, job, verb=verb: verb(shard, job, None, Windows()))
    fleet.check("cut at COMMIT of PUT and pause", at_ms, len(cuts))
    assert [cut.done for cut in cuts] == [1] * len(cuts)
    rows = fleet.rows("SELECT COUNT(*), COUNT(DISTINCT name), SUM(version = 3) FROM jobs WHERE name LIKE 'cut-%'")
    assert [sum(column) for column in zip(*rows, strict=True)] == [len(names)] * 3


def test_p10_connections_killed_between_any_two_statements_cost_nothing(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    killed = 0
    while now_ms() < at_ms + 4_000:
        for dsn in fleet.dsns:
            sessions = fleet.rows_of(dsn, f"SELECT id FROM information_schema.processlist WHERE db = '{dsn.database}'")
            killed += fleet.kill_sessions(dsn, [session for (session,) in sessions][killed % 5 :: 5])
    fleet.check("KILL CONNECTION", at_ms, killed)


def test_p10_sessions_that_the_server_ends_while_idle_are_replaced(fleet: Fleet) -> None:
    fleet.engine("--lease-ms", "1000", "--heartbeat-ms", "300")
    at_ms = fleet.load(ahead_s=4)
    fleet.check("wait_timeout of a second", at_ms)


def test_p10_locks_held_by_others_and_deadlocks_delay_and_lose_nothing(fleet: Fleet) -> None:
    fleet.engine()
    before = fleet.deadlocks()
    at_ms = fleet.load()
    fleet.jobs(200, at_ms, over_s=4, path="/flaky?n=1")
    faults = 0
    while now_ms() < at_ms + 4_000:
        fleet.lock_backwards()
        for table in ("deferred", "runs", "jobs", "marks", "leases"):
            faults += fleet.hold_locks(table, seconds=0.1)
    deadlocks = fleet.deadlocks() - before
    fleet.check("locks in the wrong order", at_ms, faults + deadlocks)
    assert deadlocks


def test_p10_an_idle_transaction_holds_up_what_it_locks_and_nothing_else(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    names = fleet.jobs(40, at_ms + 1_000)
    # As one that has been open for half an hour: whoever waits for it gives up in two seconds, however old it is.
    with fleet.idle_transaction(f"SELECT * FROM jobs WHERE name IN {tuple(names)} FOR UPDATE"):
        sleep_until(at_ms + 4_000)
        calls = [call for call in fleet.receiver.calls() if call.name not in names and call.attempt == 1]
        assert all(call.arrival_ms - call.scheduled_at_ms < 1_000 for call in calls)
        assert len(calls) >= 250
        ended_at_ms = now_ms()
    fleet.check("an idle transaction", ended_at_ms)


def test_p10_an_idle_transaction_holds_up_the_drop_of_a_day_and_no_run(fleet: Fleet) -> None:
    """Days are dropped in the middle of a minute: this waits for that, and loads the fleet meanwhile."""
    ended_ms = fleet.make_old_day()
    engine = fleet.engine()
    with fleet.idle_transaction(f"SELECT COUNT(*) FROM runs WHERE scheduled_at < {ended_ms}"):
        until(lambda: kept(engine) == {0, 1}, 60)
        at_ms = fleet.load()
        sleep_until(at_ms + 4_000)
        calls = [call for call in fleet.receiver.calls() if call.attempt == 1]
        assert all(call.arrival_ms - call.scheduled_at_ms < 1_000 for call in calls)
        assert not engine.told("day.dropped")
        ended_at_ms = now_ms()
    until(lambda: {line["shard"] for line in engine.told("day.dropped")} == {0, 1}, 60)
    fleet.check("an idle transaction while a day is dropped", ended_at_ms)


def kept(engine: Engine) -> set[int]:
    """The shards that keep a day because of a transaction."""
    return {line["shard"] for line in engine.told("day.kept") if line["reason"] == "a long transaction"}


@pytest.mark.parametrize("swallowed", [[0], [0, 1]], ids=["of the first shard", "of both shards"])
def test_p10_swallowed_packets_stop_no_stage_for_good(fleet: Fleet, swallowed: list[int]) -> None:
    fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms + 500)
    fault_at_ms = now_ms()
    for index in swallowed:
        fleet.proxies[index].swallow()
    sleep_until(fault_at_ms + 2 * LEASE_MS)
    for index in swallowed:
        fleet.proxies[index].heal()
    fleet.check("a black hole", fault_at_ms, len(swallowed))


def test_p10_a_slow_network_delays_and_loses_nothing(fleet: Fleet) -> None:
    fleet.engine()
    for proxy in fleet.proxies:
        proxy.delay_ms = 20
    at_ms = fleet.load(ahead_s=3)
    fleet.jobs(2_000, at_ms + 2_000)
    fleet.check("20 ms more for each statement", at_ms)


def test_p10_a_shard_that_turned_read_only_is_waited_for(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms + 500)
    fault_at_ms = now_ms()
    with fleet.read_only(1):
        sleep_until(fault_at_ms + 2 * LEASE_MS)
    verdict = fleet.check("a shard read-only", fault_at_ms)
    assert verdict.duplicates < verdict.runs // 2


def test_p10_a_shard_whose_disk_is_full_goes_on_when_there_is_room(fleet: Fleet) -> None:
    fleet.engine()
    at_ms = fleet.load()
    sleep_until(at_ms + 500)
    fault_at_ms = now_ms()
    with fleet.servers[1].full_disk():
        until(lambda: b"free space" in fleet.servers[1].log.read_bytes())
        sleep_until(fault_at_ms + 2 * LEASE_MS)
    verdict = fleet.check("a full disk", fault_at_ms)
    beside = [call for call in fleet.receiver.calls() if fleet.shard_of(call.name) == 0 and call.attempt == 1]
    assert all(call.arrival_ms - call.scheduled_at_ms < 1_000 for call in beside)
    assert verdict.duplicates < verdict.runs // 2


def test_p4_hosts_whose_clocks_are_off_by_90_seconds_fire_nothing_early_late_or_twice(fleet: Fleet) -> None:
    stepped, ahead = fleet.engine(), fleet.engine(clock_off_ms=CLOCK_OFF_MS)
    at_ms = fleet.load(ahead_s=3)
    sleep_until(at_ms + 1_030)
    stepped.clock.set(-CLOCK_OFF_MS)
    sleep_until(at_ms + 2_030)
    ahead.clock.set(-CLOCK_OFF_MS)
    verdict = fleet.check("clocks off by 90 s", at_ms, 3)
    assert ahead.told("clock.off")
    assert stepped.told("clock.off")
    flaky = sum(call.status == 503 for call in fleet.receiver.calls())
    assert verdict.duplicates == flaky
    assert verdict.recovery_ms < CLOCK_OFF_MS // 10


def test_p10_a_worker_whose_first_query_fails_keeps_no_lease_from_one_that_works(fleet: Fleet) -> None:
    half_alive = fleet.engine_that_cannot_read("jobs")
    sound = fleet.engine()
    fault_at_ms = now_ms()
    fleet.every_second(20, second(1), fault_at_ms + 4_000)
    until(lambda: half_alive.told("worker.stalled"))
    fleet.check("a stage whose first query fails", fault_at_ms, may_fail=half_alive)
    owners = {pid for (pid,) in fleet.rows("SELECT w.pid FROM leases l JOIN workers w USING (worker_id)")}
    assert owners <= set(sound.children().values())


def test_p3_a_rolling_restart_under_load_doubles_no_call(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = fleet.load(over_s=5)
    handed_over = fleet.jobs(50, at_ms + 7_000, retry=RetryPolicy(max_attempts=1))
    sleep_until(at_ms + 30)
    engine.signal(signal.SIGHUP)
    until(lambda: len(engine.told("child.started")) == 5)
    verdict = fleet.check("SIGHUP", at_ms)
    flaky = sum(call.status == 503 for call in fleet.receiver.calls())
    assert verdict.duplicates == flaky
    assert verdict.recovery_ms < 2_000 + MARGIN_MS
    named = f"JOIN jobs AS j USING (partition_id, job_id) WHERE j.name IN {tuple(handed_over)}"
    attempts = fleet.rows(f"SELECT r.attempt, r.tries FROM runs AS r {named}")
    assert max(attempt for attempt, _ in attempts) > 1
    assert {tries for _, tries in attempts} == {1}


def test_p10_a_keeper_that_was_stopped_for_long_does_its_work_when_it_wakes(fleet: Fleet) -> None:
    engine = fleet.engine()
    keeper = engine.child("keeper")
    os.kill(keeper, signal.SIGSTOP)
    # All that a keeper moves has stood still for hours.
    for dsn in fleet.dsns:
        fleet.rows_of(dsn, f"UPDATE marks SET mark_at = mark_at - {HOURS_MS}")
        fleet.rows_of(dsn, f"UPDATE workers SET heartbeat_at = heartbeat_at - {HOURS_MS}")
    at_ms = fleet.load()
    sleep_until(at_ms + 1_030)
    engine.kill("executor-0")
    sleep_until(at_ms + 4_000)
    os.kill(keeper, signal.SIGCONT)
    fleet.check("a keeper hours late", at_ms, 2)
    until(lambda: all(mark_ms > at_ms - HOURS_MS for (mark_ms,) in fleet.rows("SELECT mark_at FROM marks")))


def test_p1_two_engines_that_start_stop_and_die_at_random_share_the_work(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    at_ms = fleet.load(over_s=7)
    sleep_until(at_ms + 1_030)
    second.kill_all()
    second.start()
    sleep_until(at_ms + 3_500)
    first.stop()
    first.start()
    sleep_until(at_ms + 5_200)
    second.kill("executor-1")
    first.child("executor-0")  # until then it is not there to be told
    first.signal(signal.SIGHUP)
    fleet.check("two engines", at_ms, 4)
