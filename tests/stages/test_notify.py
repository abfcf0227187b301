"""Notices to tenants, through a real shard to a real receiver: told once, told later, or given up after a day."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from engine.config import Dsn
from engine.local.receiver import Receiver
from engine.model import Cron, RetryPolicy, RunAt
from engine.outbound.client import HttpClient
from engine.outbound.resolver import DnsResolver
from engine.outbound.target import Guard
from engine.rules.brakes import RELEASED, InForce
from engine.rules.notices import GIVE_UP_MS, MINUTE_MS
from engine.rules.target_text import Origin
from engine.rules.timestamps import format_time
from engine.stages.notify import Notify
from engine.store.changes import Windows, pause_job, resume_job
from engine.store.jobs import find_jobs
from engine.store.tenants import Tenants, create_tenant
from tests.support.world import TENANT, World, run_world

HOUR_MS = 3_600_000


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    with Receiver(tmp_path / "receiver.log") as receiver:
        yield receiver


async def notifier(world: World, brakes: InForce = RELEASED) -> Notify:
    guard = Guard(["127.0.0.0/8"], [])
    await world.rows(f"ALTER TABLE tenants AUTO_INCREMENT = {TENANT}")
    assert (await create_tenant(world.shard, "first")).tenant_id == TENANT
    client = HttpClient(asyncio.get_running_loop(), world.clock, guard, DnsResolver())
    tenants = Tenants(world.shard, world.clock)
    return Notify(world.shard, client, guard, tenants, lambda: brakes, world.versions, world.events, draw=lambda: 1.0)


async def one_failed(world: World, url: str | None) -> None:
    """A run that has failed for good."""
    at_ms = world.second(1)
    await world.job("once", RunAt(at_ms), on_failure_url=url, retry=RetryPolicy(max_attempts=1))
    worker = await world.worker().join()
    await worker.plan_all()
    world.clock.wall_ms = at_ms
    await worker.end(worker.runs()[0], 500)


def test_p2_a_final_failure_is_told_to_the_jobs_own_address_once(shard_dsn: Dsn, receiver: Receiver) -> None:
    async def body(world: World) -> None:
        await one_failed(world, f"http://127.0.0.1:{receiver.port}/ok")
        notify = await notifier(world)
        await notify.run_once(world.now_ms)
        await notify.run_once(world.now_ms)
        (call,) = receiver.calls()
        assert call.key.startswith("notice_failed_")
        assert await world.rows("SELECT * FROM notices") == []

    run_world(shard_dsn, body)


def test_a_notice_that_is_not_taken_is_told_again_later_and_given_up_after_a_day(
    shard_dsn: Dsn, receiver: Receiver
) -> None:
    async def body(world: World) -> None:
        await one_failed(world, f"http://127.0.0.1:{receiver.port}/status/503")
        notify = await notifier(world)
        await notify.run_once(world.now_ms)
        assert await world.rows("SELECT tries, due_at FROM notices") == [(1, world.now_ms + 10_000)]
        await notify.run_once(world.now_ms)
        assert len(receiver.calls()) == 1
        world.clock.advance(10_000)
        await notify.run_once(world.now_ms)
        assert await world.rows("SELECT tries, due_at FROM notices") == [(2, world.now_ms + 20_000)]
        world.clock.advance(GIVE_UP_MS)
        await notify.run_once(world.now_ms)
        assert await world.rows("SELECT * FROM notices") == []
        assert "notice.given_up" in world.names_told()

    run_world(shard_dsn, body)


def test_a_tenants_own_address_serves_jobs_that_have_none(shard_dsn: Dsn, receiver: Receiver) -> None:
    async def body(world: World) -> None:
        await one_failed(world, None)
        notify = await notifier(world)
        await world.rows(f"UPDATE tenants SET on_failure = 'http://127.0.0.1:{receiver.port}/ok'")
        await notify.run_once(world.now_ms)
        assert len(receiver.calls()) == 1

    run_world(shard_dsn, body)


def test_nobody_to_tell_ends_a_notice_quietly(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await one_failed(world, None)
        await (await notifier(world)).run_once(world.now_ms)
        assert await world.rows("SELECT * FROM notices") == []

    run_world(shard_dsn, body)


def test_late_runs_of_a_job_and_minute_are_told_together_when_the_minute_is_over(
    shard_dsn: Dsn, receiver: Receiver
) -> None:
    async def body(world: World) -> None:
        world.clock.advance(MINUTE_MS - world.now_ms % MINUTE_MS)
        url = f"http://127.0.0.1:{receiver.port}/ok"
        job_id = await world.job("late", RunAt(world.second(1)), on_failure_url=url, late_after_ms=1_000)
        worker = await world.worker().join()
        await worker.plan_all()
        world.clock.advance(5_000)
        await worker.end(worker.runs()[0])
        rows = await world.rows("SELECT job_id, kind, merged, due_at FROM notices")
        assert rows == [(job_id, 3, 1, world.now_ms - 5_000 + MINUTE_MS)]
        world.clock.advance(MINUTE_MS)
        await (await notifier(world)).run_once(world.now_ms)
        assert [call.key.split("_")[1] for call in receiver.calls()] == ["late"]

    run_world(shard_dsn, body)


def test_p2_a_range_of_skipped_times_is_told_with_its_first_time_and_how_many_they_are(
    shard_dsn: Dsn, receiver: Receiver
) -> None:
    async def body(world: World) -> None:
        since_ms = world.now_ms // MINUTE_MS * MINUTE_MS - 60 * MINUTE_MS
        url = f"http://127.0.0.1:{receiver.port}/ok"
        await world.job("old", Cron("* * * * *"), on_failure_url=url, next_run_at_ms=since_ms)
        await (await world.worker().join()).plan_all()
        ((skipped, to_ms),) = await world.rows("SELECT skipped, to_at FROM skips")
        world.clock.advance(MINUTE_MS)
        notify = await notifier(world)
        told = []
        send = notify._send
        notify._send = lambda request: told.append(orjson.loads(request.body)) or send(request)  # type: ignore[method-assign]
        await notify.run_once(world.now_ms)
        ((call, body),) = zip(receiver.calls(), told, strict=True)
        assert (call.key.split("_")[1], body["type"], body["count"]) == ("skipped", "run.skipped", skipped)
        data = body["data"]
        assert (data["job"], data["state"], data["reason"]) == ("old", "skipped", "missed")
        about = (data["scheduled_at"], data["skipped_from"], data["skipped"])
        assert about == (format_time(to_ms), format_time(since_ms), skipped)
        assert await world.rows("SELECT * FROM notices") == []

    run_world(shard_dsn, body)


def test_p2_resuming_tells_what_its_pause_made_the_job_miss(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        await world.job("paused", Cron("* * * * * *"))
        name = (TENANT, "paused")
        await pause_job(world.shard, (await find_jobs(world.shard, [name]))[name], None, Windows())
        await world.rows("UPDATE jobs SET resume_at = resume_at - 10000")
        await resume_job(world.shard, (await find_jobs(world.shard, [name]))[name], None, Windows())
        skips = await world.rows("SELECT SUM(skipped) FROM skips")
        assert await world.rows("SELECT merged FROM notices WHERE kind = 2") == skips

    run_world(shard_dsn, body)


def test_a_notice_waits_while_a_brake_is_pulled(shard_dsn: Dsn, receiver: Receiver) -> None:
    async def body(world: World) -> None:
        await one_failed(world, f"http://127.0.0.1:{receiver.port}/ok")
        notify = await notifier(world, InForce(everything=True))
        await notify.run_once(world.now_ms)
        assert await world.rows("SELECT tries FROM notices") == [(0,)]
        origin = Origin("http", "127.0.0.1", receiver.port)
        for brakes in (InForce(tenants=frozenset({TENANT})), InForce(origins=frozenset({origin}))):
            notify._brakes = lambda brakes=brakes: brakes
            await notify.run_once(world.now_ms)
            world.clock.advance(HOUR_MS)
        assert await world.rows("SELECT tries FROM notices") == [(2,)]
        assert receiver.calls() == []
        notify._brakes = lambda: RELEASED
        await notify.run_once(world.now_ms)
        assert len(receiver.calls()) == 1

    run_world(shard_dsn, body)
