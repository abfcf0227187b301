"""Secrets that a host has no key for: their own runs wait, told to the operator, and nobody else's do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.config import Dsn
from engine.keys import Keys, new_key
from engine.local.receiver import Receiver
from engine.model import (
    Definition,
    FunctionTarget,
    HeaderValue,
    HttpTarget,
    Overlap,
    RetryPolicy,
    RunAt,
    RunState,
    partition_of,
)
from engine.outbound.client import HttpClient
from engine.outbound.resolver import DnsResolver
from engine.outbound.target import Guard
from engine.rules.brakes import RELEASED
from engine.rules.lanes import SEALED_LANES_FROM, TAKEN_LANES_FROM
from engine.rules.work import Deed
from engine.stages.claim import SEALED_INTERVAL_MS
from engine.stages.fire import SEALED_PAUSE_MS, Fire
from engine.stages.fleet_listeners import FleetListeners
from engine.stages.notify import Notify
from engine.stages.take import SEALED_WAIT_MS
from engine.stages.tenancy import TOLD_INTERVAL_MS, Tenancy
from engine.stages.versions import Versions
from engine.stages.work import Stale
from engine.stages.work_ends import End, fence_of
from engine.store.jobs import NewJob, create_jobs
from engine.store.shard import Shard
from engine.store.tenants import Tenants, create_tenant
from tests.stages.test_work import Bench
from tests.support.wait import until_async
from tests.support.world import PARTITIONS, TENANT, Worker, World, run_world

SECRET = "hunter2-and-more"
HERE, ELSEWHERE = new_key(), new_key()


def shard_of_host(world: World, *keys: str) -> Shard:
    """The shard as a host sees it that has these keys."""
    return Shard(world.shard.dsn, 0, connections_max=16, keys=Keys(keys))


async def worker_of_host(world: World, *keys: str) -> Worker:
    """A worker on such a host, with a cache of versions of its own."""
    world.shard = shard_of_host(world, *keys)
    world.versions = Versions(Guard(["127.0.0.0/8"], []))
    return await world.worker().join()


async def sealed_jobs(world: World, names: Sequence[str], at_ms: int, **settings: object) -> None:
    """Jobs whose secret is sealed with a key of another host."""
    shard = shard_of_host(world, ELSEWHERE)
    target = HttpTarget("http://127.0.0.1:9/", headers=(("X-Key", HeaderValue(SECRET, secret=True)),))
    definition = Definition(RunAt(at_ms), target, **settings)
    places = [partition_of(TENANT, name, PARTITIONS) for name in names]
    await create_jobs(
        shard, [NewJob(TENANT, name, place, definition, False) for name, place in zip(names, places, strict=True)]
    )
    await shard.close()


async def lanes(world: World) -> list[bool]:
    return [SEALED_LANES_FROM <= row[0] < TAKEN_LANES_FROM for row in await world.rows("SELECT lane FROM deferred")]


def test_p9_a_missing_key_holds_its_own_runs_and_delays_no_other(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(5)
        await sealed_jobs(world, [f"sealed-{number}" for number in range(20)], at_ms)
        for number in range(20):
            await world.job(f"plain-{number}", RunAt(at_ms))
        worker = await worker_of_host(world, HERE)
        await worker.plan_all()
        assert len(worker.runs()) == 20, "all others are planned, and born claimed"
        assert await lanes(world) == [True] * 20
        told = [fields for name, fields in world.told if name == "run.sealed"]
        assert [fields["runs"] for fields in told] == [20]
        assert "encrypted with key" in told[0]["error"]
        # A retry of another job, due at the same second, is claimed beside them.
        worker.settle.given_back(worker.runs()[0])
        await worker.settle.run_once(world.now_ms)
        world.clock.wall_ms = at_ms
        await worker.claim.run_once(world.now_ms)
        assert len(worker.runs()) == 20
        assert {run.call.sealed for run in worker.runs()} == {""}
        assert {due_at for (due_at,) in await world.rows("SELECT due_at FROM deferred WHERE reason = 6")} == {
            at_ms + SEALED_WAIT_MS
        }

    run_world(shard_dsn, body)


def test_p9_a_host_with_the_key_takes_what_the_owner_cannot_open(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(5)
        await sealed_jobs(world, ["sealed"], at_ms)
        owner = await worker_of_host(world, HERE)
        await owner.plan_all()
        other = await worker_of_host(world, HERE, ELSEWHERE)
        world.clock.wall_ms = at_ms
        await other.claim.run_once(world.now_ms)
        (run,) = other.runs()
        assert f"X-Key: {SECRET}".encode() in run.call.fixed_head
        assert await lanes(world) == [False], "whoever looks for silent holders finds it where all others are"
        # The owner wakes up and finds nothing to take.
        world.clock.advance(SEALED_INTERVAL_MS)
        await owner.claim.run_once(world.now_ms)
        assert owner.runs() == []
        await other.end(run)
        assert await world.states() == [(at_ms, RunState.SUCCEEDED)]

    run_world(shard_dsn, body)


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP])
def test_p9_a_run_that_was_held_for_a_key_starts_once_it_is_there(shard_dsn: Dsn, overlap: Overlap) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(5)
        await sealed_jobs(world, ["sealed"], at_ms, overlap=overlap)
        worker = await worker_of_host(world, HERE)
        await worker.plan_all()
        for _ in range(3):
            world.clock.advance(SEALED_WAIT_MS + 5_000)
            await worker.lease.run_once(world.now_ms)
            await worker.claim.run_once(world.now_ms)
            assert worker.runs() == []
        assert world.names_told().count("run.sealed") == 4, "the operator is told each time it is looked at"
        world.shard.keys._take([HERE, ELSEWHERE])
        world.clock.advance(SEALED_WAIT_MS + 5_000)
        await worker.lease.run_once(world.now_ms)
        await worker.claim.run_once(world.now_ms)
        assert [run.key.scheduled_at_ms for run in worker.runs()] == [at_ms]

    run_world(shard_dsn, body)


def test_p9_a_run_of_a_sealed_job_is_reaped_like_any_other(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(5)
        await sealed_jobs(world, ["sealed"], at_ms, retry=RetryPolicy(max_attempts=1))
        dead = await worker_of_host(world, ELSEWHERE)
        await dead.plan_all()
        assert len(dead.runs()) == 1
        world.clock.wall_ms = at_ms
        await world.rows("UPDATE workers SET lease_until = 0")
        await worker_of_host(world, HERE)
        reap = world.reap()
        for _ in range(30):
            await reap.run_once(world.now_ms)
            world.clock.advance(1_000)
        assert await world.states() == [(at_ms, RunState.FAILED)], "its policy is no secret"

    run_world(shard_dsn, body)


async def two_tenants(world: World) -> tuple[int, int, Shard]:
    """One whose signing secret this host can open, one of another key, and this host's shard."""
    await world.rows(f"ALTER TABLE tenants AUTO_INCREMENT = {TENANT}")
    here, elsewhere = shard_of_host(world, HERE), shard_of_host(world, ELSEWHERE)
    mine = await create_tenant(here, "mine")
    theirs = await create_tenant(elsewhere, "theirs")
    await elsewhere.close()
    return mine.tenant_id, theirs.tenant_id, here


@pytest.mark.parametrize("damaged", [False, True])
def test_p9_an_unreadable_signing_secret_is_its_tenants_trouble_alone(shard_dsn: Dsn, damaged: bool) -> None:
    async def body(world: World) -> None:
        mine, theirs, here = await two_tenants(world)
        if damaged:
            here.keys._take([HERE, ELSEWHERE])
            await world.rows(f"UPDATE signing_secrets SET secret = CONCAT(secret, 'x') WHERE tenant_id = {theirs}")
        tenants = Tenants(here, world.clock)
        tenancy = Tenancy(tenants, FleetListeners(here, Guard(), world.clock), world.events)
        assert tenancy.known(mine) is None
        assert tenancy.known(theirs) is None
        await tenancy.run_once(world.now_ms)
        await tenancy.run_once(world.now_ms)
        good, bad = tenancy.known(mine), tenancy.known(theirs)
        assert good is not None
        assert bad is not None
        assert (len(good.signing_keys), good.sealed) == (1, "")
        assert bad.signing_keys == ()
        assert bad.sealed
        assert [fields["tenant_id"] for name, fields in world.told if name == "tenant.sealed"] == [theirs]
        await tenancy.run_once(world.now_ms + TOLD_INTERVAL_MS)
        assert world.names_told().count("tenant.sealed") == 2
        # Put right, it is known with the next look.
        if damaged:
            await world.rows(f"DELETE FROM signing_secrets WHERE tenant_id = {theirs}")
        else:
            here.keys._take([HERE, ELSEWHERE])
        await tenancy.run_once(world.now_ms)
        assert tenants.sealed == {}
        await here.close()

    run_world(shard_dsn, body)


def test_p9_runs_that_cannot_be_signed_are_held_and_those_of_others_start(shard_dsn: Dsn, tmp_path: Path) -> None:
    async def body(world: World) -> None:
        mine, theirs, here = await two_tenants(world)
        world.shard = here
        tenancy = Tenancy(Tenants(here, world.clock), FleetListeners(here, Guard(), world.clock), world.events)
        await tenancy._tenants.tenants.load([mine, theirs])
        at_ms = world.second(2)
        with Receiver(tmp_path / "log") as receiver:
            target = HttpTarget(f"http://127.0.0.1:{receiver.port}/ok")
            for tenant_id in (mine, theirs):
                place = partition_of(tenant_id, "job", PARTITIONS)
                await create_jobs(here, [NewJob(tenant_id, "job", place, Definition(RunAt(at_ms), target), False)])
            worker = await world.worker().join()
            client = HttpClient(asyncio.get_running_loop(), world.clock, Guard(["127.0.0.0/8"]), DnsResolver())
            fire = Fire(
                worker.held, [worker.lease], client, tenancy.known, lambda: RELEASED, [worker.settle], world.clock,
                world.events,
            )  # fmt: skip
            await worker.plan_all()
            world.clock.wall_ms = at_ms
            fire.run_once(world.now_ms)
            await until_async(lambda: len(worker.settle) == 2)
            await worker.settle.run_once(world.now_ms)
            fire.stop()
            await client.close()
            assert len(receiver.calls()) == 1
        states = await world.rows("SELECT tenant_id, state, tries, reason FROM runs ORDER BY tenant_id")
        assert states == [(mine, RunState.SUCCEEDED, 1, None), (theirs, RunState.WAITING, 0, 6)]
        assert await world.rows("SELECT due_at FROM deferred") == [(at_ms + SEALED_PAUSE_MS,)]
        await here.close()

    run_world(shard_dsn, body)


def test_p9_a_notice_that_cannot_be_signed_waits_and_others_are_told(shard_dsn: Dsn, tmp_path: Path) -> None:
    async def body(world: World) -> None:
        mine, theirs, here = await two_tenants(world)
        at_ms = world.second(1)
        with Receiver(tmp_path / "log") as receiver:
            url = f"http://127.0.0.1:{receiver.port}/ok"
            for tenant_id in (mine, theirs):
                once = Definition(
                    RunAt(at_ms), HttpTarget("http://127.0.0.1:9/"), on_failure_url=url,
                    retry=RetryPolicy(max_attempts=1),
                )  # fmt: skip
                place = partition_of(tenant_id, "job", PARTITIONS)
                await create_jobs(here, [NewJob(tenant_id, "job", place, once, False)])
            worker = await world.worker().join()
            await worker.plan_all()
            world.clock.wall_ms = at_ms
            for run in worker.runs():
                await worker.end(run, 500)
            client = HttpClient(asyncio.get_running_loop(), world.clock, Guard(["127.0.0.0/8"]), DnsResolver())
            notify = Notify(
                here, client, Guard(["127.0.0.0/8"]), Tenants(here, world.clock), lambda: RELEASED, world.versions,
                world.events, draw=lambda: 1.0,
            )  # fmt: skip
            await notify.run_once(world.now_ms)
            assert len(receiver.calls()) == 1
            assert await world.rows("SELECT tenant_id, tries FROM notices") == [(theirs, 1)]
            here.keys._take([HERE, ELSEWHERE])
            world.clock.advance(10_000)
            await notify._tenants.reread()
            await notify.run_once(world.now_ms)
            assert len(receiver.calls()) == 2
            await client.close()
        await here.close()

    run_world(shard_dsn, body)


def test_p9_one_version_that_cannot_be_read_spoils_no_other_end_that_workers_say(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        at_ms = world.second(5)
        for name in ("good", "bad"):
            await world.job(name, RunAt(at_ms), target=FunctionTarget("report", None))
        worker = await world.worker().join()
        await worker.plan_all()
        world.clock.wall_ms = at_ms
        bench = Bench(world)
        claimed = {each.name: each for each in await bench.claim()}
        bad = claimed["bad"].run.key
        await world.rows(f"UPDATE job_versions SET definition = '{{}}' WHERE job_id = {bad.job_id}")
        world.versions._known.clear()
        bench.work._given.clear()
        answers = await bench.work.settle([End(fence_of(each.run), Deed.COMPLETE) for each in claimed.values()])
        assert not any(isinstance(answer, Stale | Exception) for answer in answers)
        assert [state for _, state in await world.states()] == [RunState.SUCCEEDED] * 2

    run_world(shard_dsn, body)
