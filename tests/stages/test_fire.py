"""Firing against a real receiver: at its second, never before, and only while the worker may trust itself."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from engine.clock import SystemClock
from engine.config import Settings
from engine.events import Events
from engine.local.listener import free_port
from engine.local.receiver import Receiver
from engine.model import Definition, HttpTarget, OutcomeKind, Priority, Reason, RunAt, RunKey
from engine.outbound.client import HttpClient
from engine.outbound.exchange import Outcome
from engine.outbound.resolver import DnsResolver
from engine.outbound.target import Guard
from engine.rules.brakes import RELEASED, UNKNOWN, InForce
from engine.rules.quota import ORIGIN_LIMITS, PRIORITY_STARTS_PER_S
from engine.stages.fire import HELD_CHECK_MS, HELD_MS_MAX, LANE_IN_FLIGHT_MAX, LEASE_SLACK_MS, Fire
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.stages.versions import CallPlan
from engine.store.tenants import Tenant
from tests.support.clock import SettableClock
from tests.support.wait import until_async

WORKER = 42


class StubLease:
    """A lease as firing sees it."""

    worker_id = WORKER
    live_workers = 1

    def __init__(self) -> None:
        self.is_trusted = True

    def trusted(self) -> bool:
        return self.is_trusted


class Ends:
    """Collects what firing hands on."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[HeldRun, Outcome]] = []
        self.skips: list[tuple[HeldRun, Reason]] = []
        self.returned: list[HeldRun] = []
        self.held_up_runs: list[HeldRun] = []

    def settled(self, run: HeldRun, outcome: Outcome) -> None:
        self.outcomes.append((run, outcome))

    def skipped(self, run: HeldRun, reason: Reason) -> None:
        self.skips.append((run, reason))

    def given_back(self, run: HeldRun) -> None:
        self.returned.append(run)

    def held_up(self, run: HeldRun) -> None:
        self.held_up_runs.append(run)


class Gun:
    """A fire stage with a real client; tenants and leases are set by hand."""

    def __init__(self, receiver: Receiver) -> None:
        self.clock = SystemClock()
        self.lease, self.ends = StubLease(), Ends()
        self.tenant: Tenant | None = Tenant(7, "seven", False, None, (b"k" * 32,), {})
        self.brakes: InForce = RELEASED
        self.guard = Guard(["127.0.0.0/8"], [])
        self.held = HeldRuns(self.clock.now_ms(), 1_000)
        self.client = HttpClient(asyncio.get_running_loop(), self.clock, self.guard, DnsResolver())
        self.fire = Fire(
            self.held,
            [self.lease],  # type: ignore[list-item]
            self.client,
            lambda _: self.tenant,
            lambda: self.brakes,
            [self.ends],
            self.clock,
            Events(),
        )
        self.base = f"http://127.0.0.1:{receiver.port}"
        self.fired = 0

    def run(self, path: str, in_ms: int, *, timeout_ms: int = 30_000, url: str | None = None) -> HeldRun:
        """A claimed run due so soon."""
        self.fired += 1
        due_ms = self.clock.now_ms() + in_ms
        target = HttpTarget(url or f"{self.base}{path}")
        call = CallPlan(Definition(RunAt(due_ms), target, timeout_ms=timeout_ms), self.guard)
        return HeldRun(
            RunKey(1, due_ms, self.fired), worker_id=WORKER, attempt=1, tries=0, tenant_id=7, version=1,
            priority=Priority.NORMAL, due_ms=due_ms, lease_until_ms=call.lease_until_ms(due_ms, due_ms),
            deferred=False, overlap=False, call=call, shard_index=0,
        )  # fmt: skip

    async def outcomes(self, count: int) -> list[Outcome]:
        await until_async(lambda: len(self.ends.outcomes) >= count)
        return [outcome for _, outcome in self.ends.outcomes]


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with Receiver(tmp_path_factory.mktemp("receiver") / "log") as receiver:
        yield receiver


def with_gun(receiver: Receiver, body: Callable[[Gun], Awaitable[None]]) -> None:
    async def main() -> None:
        gun = Gun(receiver)
        try:
            await body(gun)
        finally:
            gun.fire.stop()
            await gun.client.close()

    asyncio.run(main())


def test_p4_no_byte_arrives_before_its_moment_and_an_idle_engine_is_on_time(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        runs = [gun.run(f"/ok/early-{number}", 100 + 7 * number) for number in range(100)]
        gun.fire.hold(runs)
        await gun.outcomes(100)
        arrived = {call.name: call.arrival_ms for call in receiver.calls() if "early-" in call.name}
        lags = [arrived[f"early-{number}"] - run.due_ms for number, run in enumerate(runs)]
        assert min(lags) >= 0
        assert sorted(lags)[50] < 100

    with_gun(receiver, body)


def test_p3_a_run_of_a_worker_that_no_longer_trusts_its_lease_is_given_back_unfired(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("/ok/untrusted", 50)
        gun.fire.hold([run])
        gun.lease.is_trusted = False
        await until_async(lambda: gun.ends.returned)
        assert gun.ends.returned == [run]
        assert "untrusted" not in {call.name for call in receiver.calls()}

    with_gun(receiver, body)


def test_p3_a_run_claimed_under_a_worker_id_that_was_lost_is_given_back_unfired(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("/ok/old-id", 50)
        run.worker_id = WORKER - 1
        gun.fire.hold([run])
        await until_async(lambda: gun.ends.returned)
        assert gun.ends.outcomes == []

    with_gun(receiver, body)


def test_p3_a_run_whose_own_lease_would_not_outlast_its_time_out_is_given_back_unfired(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("/ok/short", 10)
        run.lease_until_ms = run.due_ms + run.call.timeout_ms
        gun.fire.hold([run])
        await until_async(lambda: gun.ends.returned)
        assert gun.ends.outcomes == []

    with_gun(receiver, body)


def test_p3_a_lease_lost_and_regained_20_times_leaves_nothing_of_the_old_wheel(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        first = gun.run("/ok/regained", 400)
        for attempt in range(1, 22):
            run = gun.run("/ok/regained", 0)
            run.key, run.due_ms, run.attempt = first.key, first.due_ms, attempt
            ready = gun.run("/ok/regained-ready", 0)
            ready.key, ready.attempt = RunKey(1, first.due_ms, 0), attempt
            gun.fire.hold([run, ready] if attempt < 21 else [run])
            if attempt < 21:
                gun.fire.give_up(0)
                assert len(gun.held) == 0
                assert gun.held.next_ms() == -1
        await gun.outcomes(1)
        gun.fire.run_once(gun.clock.now_ms())
        calls = [call.attempt for call in receiver.calls() if call.name.startswith("regained")]
        assert calls == [21]
        assert len(gun.ends.returned) == 40
        assert (gun.fire.ready, gun.fire.in_flight) == (0, 0)

    with_gun(receiver, body)


def test_p3_a_machine_that_slept_past_its_lease_fires_nothing_of_what_was_due_meanwhile(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        clock = SettableClock(gun.clock.now_ms())
        lease = Lease(None, [], Settings(), clock, Events(), lambda: None)  # type: ignore[arg-type]
        lease._trusted_until_boot_ms, lease._measured = clock.boot_ms() + Settings().lease_ms, True
        assert lease.trusted()
        fire = Fire(gun.held, [lease], gun.client, lambda _: gun.tenant, lambda: RELEASED, [gun.ends], clock, Events())  # type: ignore[list-item]
        runs = [gun.run(f"/ok/slept-{number}", 60_000) for number in range(5)]
        for run in runs:
            run.worker_id = lease.worker_id
        fire.hold(runs)
        clock.advance(3_600_000)
        fire.run_once(clock.now_ms())
        fire.stop()
        assert gun.ends.returned == runs
        assert not [call for call in receiver.calls() if call.name.startswith("slept")]

    with_gun(receiver, body)


def test_an_abandoned_run_is_neither_fired_nor_settled(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        abandoned, other = gun.run("/ok/abandoned", 50), gun.run("/ok/other", 60)
        gun.fire.hold([abandoned, other])
        gun.fire.abandon(abandoned)
        await gun.outcomes(1)
        assert [run for run, _ in gun.ends.outcomes] == [other]
        assert "abandoned" not in {call.name for call in receiver.calls()}
        assert gun.held.find(abandoned.key, 1) is None

    with_gun(receiver, body)


def test_a_cancelled_run_in_flight_is_stopped_and_settles_cancelled_once(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("/hang/cancelled", 10)
        gun.fire.hold([run])
        await until_async(lambda: gun.fire.in_flight == 1)
        gun.fire.cancel(run)
        gun.fire.cancel(run)
        assert gun.fire.in_flight == 0
        assert [outcome.kind for outcome in await gun.outcomes(1)] == [OutcomeKind.CANCELLED]

    with_gun(receiver, body)


def test_a_run_of_a_disabled_tenant_is_skipped_with_the_reason(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        gun.tenant = Tenant(7, "seven", True, None, (b"k" * 32,), {})
        run = gun.run("/ok/disabled", 10)
        gun.fire.hold([run])
        await until_async(lambda: gun.ends.skips)
        assert gun.ends.skips == [(run, Reason.TENANT_DISABLED)]

    with_gun(receiver, body)


@pytest.mark.parametrize("brakes", [InForce(everything=True), InForce(tenants=frozenset({7})), UNKNOWN])
def test_a_run_that_a_brake_stops_waits_until_it_is_released(receiver: Receiver, brakes: InForce) -> None:
    async def body(gun: Gun) -> None:
        gun.brakes = brakes
        run = gun.run("/ok/braked", 10)
        gun.fire.hold([run])
        await until_async(lambda: gun.ends.held_up_runs)
        assert gun.ends.held_up_runs == [run]
        assert "braked" not in {call.name for call in receiver.calls()}
        gun.brakes = InForce(tenants=frozenset({8}))
        gun.fire.hold([gun.run("/ok/another-tenants", 10)])
        assert [outcome.status for outcome in await gun.outcomes(1)] == [200]

    with_gun(receiver, body)


def test_a_run_whose_origin_is_blocked_is_skipped_at_its_second_and_others_go_on(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        blocked = gun.run("/ok/blocked", 50, url=f"http://127.0.0.1:{free_port()}/")
        assert blocked.call.target is not None
        gun.brakes = InForce(origins=frozenset({blocked.call.target.origin}))
        gun.fire.hold([blocked, gun.run("/ok/free", 50)])
        assert [outcome.status for outcome in await gun.outcomes(1)] == [200]
        await until_async(lambda: gun.ends.skips)
        assert gun.ends.skips == [(blocked, Reason.BLOCKED)]
        assert gun.clock.now_ms() >= blocked.due_ms

    with_gun(receiver, body)


def test_a_tenant_that_is_not_known_yet_delays_its_run_until_it_is(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        known, gun.tenant = gun.tenant, None
        gun.fire.hold([gun.run("/ok/unknown", 10)])
        await asyncio.sleep(0)
        gun.tenant = known
        assert [outcome.status for outcome in await gun.outcomes(1)] == [200]

    with_gun(receiver, body)


def test_p2_a_run_whose_tenant_stays_unknown_goes_back_when_its_lease_ends_and_costs_no_try(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        gun.tenant = None
        run, known_later = gun.run("/ok/unknown", -1), gun.run("/ok/known-later", -1)
        run.lease_until_ms = gun.clock.now_ms() + run.call.timeout_ms + LEASE_SLACK_MS + 100
        gun.fire.hold([run, known_later])
        await until_async(lambda: gun.ends.returned)
        gun.tenant = Tenant(7, "seven", False, None, (b"k" * 32,), {})
        await gun.outcomes(1)
        assert gun.ends.returned == [run]

    with_gun(receiver, body)


def test_p7_a_run_that_a_signal_was_faster_than_is_given_back_unfired(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        told, other = gun.run("/ok/told", -1), gun.run("/ok/not-told", -1)
        gun.held.foretell(told.key, told.attempt)
        gun.fire.hold([told, other])
        await gun.outcomes(1)
        assert gun.ends.returned == [told]
        assert "told" not in {call.name for call in receiver.calls()}

    with_gun(receiver, body)


def test_p9_a_refused_target_settles_at_its_moment_without_a_call(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("", 50, url="http://169.254.169.254/latest/meta-data/")
        gun.fire.hold([run])
        (outcome,) = await gun.outcomes(1)
        assert outcome.kind == OutcomeKind.TARGET_REFUSED
        assert outcome.started_ms >= run.due_ms

    with_gun(receiver, body)


def test_a_call_that_times_out_ends_in_its_time(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        run = gun.run("/hang/timeout", 10, timeout_ms=200)
        gun.fire.hold([run])
        (outcome,) = await gun.outcomes(1)
        assert outcome.kind == OutcomeKind.TIMEOUT
        # From the moment it was sent, connecting included, which is before its first byte.
        assert 200 <= outcome.finished_ms - run.due_ms < 2_000

    with_gun(receiver, body)


def test_p6_one_hanging_endpoint_with_2000_runs_holds_up_its_own_runs_alone_and_they_go_back(
    receiver: Receiver,
) -> None:
    async def body(gun: Gun) -> None:
        gun.held = gun.fire._held = HeldRuns(gun.clock.now_ms(), 10_000)
        deaf = socket.create_server(("127.0.0.1", 0), backlog=LANE_IN_FLIGHT_MAX)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        hanging = [gun.run("", -1, url=url) for _ in range(2_000)]
        answering = gun.run("/ok/beside", -1)
        gun.fire.hold([*hanging, answering])
        gun.fire.run_once(gun.clock.now_ms())
        await gun.outcomes(1)
        assert [run for run, _ in gun.ends.outcomes] == [answering]
        assert gun.fire.in_flight == LANE_IN_FLIGHT_MAX
        gun.fire.run_once(gun.clock.now_ms() + HELD_MS_MAX + HELD_CHECK_MS)
        assert len(gun.ends.held_up_runs) == 2_000 - LANE_IN_FLIGHT_MAX
        assert gun.fire.ready == 0
        deaf.close()

    with_gun(receiver, body)


def test_p6_what_exceeds_a_tenants_quota_of_critical_starts_is_fired_as_normal_and_recorded(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        quota = PRIORITY_STARTS_PER_S[Priority.CRITICAL]
        gun.lease.live_workers = quota // 5
        runs = [gun.run(f"/ok/critical-{number}", -1) for number in range(8)]
        for run in runs:
            run.priority = Priority.CRITICAL
        gun.fire.hold(runs)
        gun.fire.run_once(gun.clock.now_ms() // 1000 * 1000 + 1)
        await gun.outcomes(8)
        assert sum(run.demoted for run in runs) == 3

    with_gun(receiver, body)


def test_p6_a_tenants_starts_above_its_limit_wait_for_the_next_second(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        gun.tenant = Tenant(7, "seven", False, None, (b"k" * 32,), {"starts_per_s": 3})
        runs = [gun.run(f"/ok/limited-{number}", -1) for number in range(7)]
        gun.fire.hold(runs)
        await gun.outcomes(7)
        # Three are admitted in a second; one admitted at its very end may start in the next.
        started = sorted(outcome.started_ms for _, outcome in gun.ends.outcomes)
        assert started[6] // 1000 - started[0] // 1000 == 2

    with_gun(receiver, body)


def test_p5_a_tenants_catch_up_is_paced_by_its_limit_and_takes_half_of_its_starts_at_most(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        gun.tenant = Tenant(7, "seven", False, None, (b"k" * 32,), {"starts_per_s": 4})
        caught_up = [gun.run(f"/ok/caught-up-{number}", -1) for number in range(10)]
        for run in caught_up:
            run.late = True
        on_time = [gun.run(f"/ok/on-time-{number}", -1) for number in range(2)]
        gun.fire.hold([*caught_up, *on_time])
        gun.fire.run_once(gun.clock.now_ms())
        assert [run.in_flight for run in on_time] == [True, True]
        await gun.outcomes(12)
        per_second = Counter(outcome.started_ms // 1000 for _, outcome in gun.ends.outcomes)
        assert max(per_second.values()) <= 4 + 1  # one admitted at the end of a second may start in the next

    with_gun(receiver, body)


def test_p9_a_public_origin_has_no_more_calls_in_flight_than_it_takes_of_all_tenants(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        gun.lease.live_workers = ORIGIN_LIMITS.in_flight // 4
        runs = [gun.run(f"/hang/public-{number}", -1) for number in range(20)]
        for run in runs:
            run.call.is_public = True
        gun.fire.hold(runs)
        await until_async(lambda: gun.fire.in_flight == 4)
        gun.fire.run_once(gun.clock.now_ms() + HELD_MS_MAX + 1_000)
        assert gun.fire.in_flight == 4
        assert len(gun.ends.held_up_runs) == 16

    with_gun(receiver, body)


def test_it_is_known_how_late_the_last_start_was(receiver: Receiver) -> None:
    async def body(gun: Gun) -> None:
        for late_ms in (6_000, 0):
            gun.fire.hold([gun.run("/ok", -late_ms)])
            await gun.outcomes(len(gun.ends.outcomes) + 1)
            assert late_ms <= gun.fire.lag_ms < late_ms + 5_000

    with_gun(receiver, body)
