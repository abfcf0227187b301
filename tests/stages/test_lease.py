"""Leases on a real shard: renewed in time or lost, shared out, and never kept by a worker that does not work."""

from __future__ import annotations

import time

import pytest

from engine.clock import OFFSET_MS_MAX, SLOW_ANSWER_MS, SystemClock
from engine.config import Dsn
from engine.service import Service
from engine.stages.lease import STALLED_MS, STAND_ASIDE_MS, TRUST_MARGIN_PART
from engine.stages.timekeep import Timekeep
from engine.store.connection import Connection
from tests.support.wait import until_async
from tests.support.world import PARTITIONS, SETTINGS, Worker, World, run_world

OFF_MS = 90_000


async def beat(world: World, *workers: Worker) -> None:
    """A heartbeat of each, twice: what one gives, another takes."""
    for worker in workers * 2:
        await worker.lease.run_once(world.now_ms)


def test_a_worker_trusts_its_lease_for_nine_tenths_of_it_counted_from_when_it_asked(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await world.worker().join()
        world.clock.advance(SETTINGS.lease_ms - SETTINGS.lease_ms // TRUST_MARGIN_PART - 1)
        assert worker.lease.trusted()
        world.clock.advance(1)
        assert not worker.lease.trusted()

    run_world(shard_dsn, body)


def test_p10_a_registration_whose_answer_was_lost_is_found_by_the_next_heartbeat(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker = await world.worker().join()
        worker.lease._registered = False  # as after a connection that broke before the answer
        await beat(world, worker)
        assert await world.rows("SELECT worker_id FROM workers") == [(worker.lease.worker_id,)]
        assert worker.lost == 0
        await world.rows("UPDATE workers SET lease_until = 0")
        worker.lease._registered = False
        await beat(world, worker)
        assert await world.rows("SELECT worker_id FROM workers WHERE lease_until > 0") == [(worker.lease.worker_id,)]
        assert worker.lost == 1

    run_world(shard_dsn, body)


def test_p10_a_worker_whose_stage_fails_leaves_its_partitions_to_those_that_work(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        broken, sound = await world.worker().join(), await world.worker().join()
        broken.lease.works_since = lambda boot_ms: boot_ms < 1_000_000
        await beat(world, broken, sound)
        assert len(broken.lease.partitions) == PARTITIONS // 2
        for _ in range(2 + STALLED_MS // SETTINGS.lease_ms):
            world.clock.advance(SETTINGS.lease_ms)
            await beat(world, broken, sound)
        assert (len(broken.lease.partitions), len(sound.lease.partitions)) == (0, PARTITIONS)
        broken.lease.works_since = lambda boot_ms: True
        world.clock.advance(STAND_ASIDE_MS)
        await beat(world, broken, sound)
        assert len(broken.lease.partitions) == PARTITIONS // 2

    run_world(shard_dsn, body)


def test_a_worker_whose_stage_fails_keeps_its_partitions_where_nobody_else_could_have_them(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        alone = await world.worker().join()
        alone.lease.works_since = lambda boot_ms: False
        for _ in range(4):
            world.clock.advance(SETTINGS.lease_ms)
            await beat(world, alone)
        assert len(alone.lease.partitions) == PARTITIONS

    run_world(shard_dsn, body)


def test_p10_after_an_outage_no_worker_stands_aside_for_what_the_outage_did(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, other = await world.worker().join(), await world.worker().join()
        await beat(world, worker, other)
        worker.lease.works_since = lambda boot_ms: False  # no stage had a good round while the shard was away
        world.clock.advance(10 * SETTINGS.lease_ms)
        await beat(world, worker, other)
        assert len(worker.lease.partitions) == PARTITIONS // 2

    run_world(shard_dsn, body)


def test_p10_who_drains_hands_over_at_once_and_beats_on_until_it_is_released(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        leaving, staying = await world.worker().join(), await world.worker().join()
        await beat(world, leaving, staying)
        await leaving.lease.drain()
        assert leaving.lease.partitions == []
        await staying.lease.run_once(world.now_ms)
        assert len(staying.lease.partitions) == PARTITIONS
        await beat(world, leaving)
        assert leaving.lease.trusted()
        assert not leaving.lease.may_claim_ahead()
        assert leaving.lease.partitions == []
        assert await world.rows("SELECT COUNT(*) FROM workers WHERE lease_until > 0") == [(2,)]
        await leaving.lease.release()
        assert await world.rows("SELECT COUNT(*) FROM workers WHERE lease_until > 0") == [(1,)]

    run_world(shard_dsn, body)


def test_p10_a_stage_whose_first_query_fails_is_found_by_its_loop_and_its_lease_goes_to_others(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        half_alive, sound = await world.worker().join(), await world.worker().join()
        await world.rows("ALTER TABLE jobs RENAME COLUMN next_run_at TO moved")
        service = Service("plan", half_alive.plan.run_once, 1_000, world.clock, world.events)
        half_alive.lease.works_since = lambda boot_ms: service.last_loop_boot_ms >= boot_ms
        await beat(world, half_alive, sound)
        service.start()
        for _ in range(2 + STALLED_MS // SETTINGS.lease_ms):
            failures = world.names_told().count("stage.failed")
            service.wake()
            await until_async(lambda before=failures: world.names_told().count("stage.failed") > before)
            world.clock.advance(SETTINGS.lease_ms)
            await beat(world, half_alive, sound)
        await service.stop()
        await world.rows("ALTER TABLE jobs RENAME COLUMN moved TO next_run_at")
        assert (len(half_alive.lease.partitions), len(sound.lease.partitions)) == (0, PARTITIONS)
        assert "worker.stalled" in world.names_told()

    run_world(shard_dsn, body)


def test_p4_a_keeper_whose_host_has_a_wrong_clock_does_nothing_before_it_has_the_shards_time(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        clock = SystemClock(lambda: time.time_ns() + OFF_MS * 1_000_000)
        timekeep = Timekeep(world.shard, clock, world.events)
        assert not timekeep.followed.is_set()
        await timekeep.run_once(clock.now_ms())
        assert timekeep.followed.is_set()
        assert abs(clock.now_ms() - await world.shard.now_ms()) < OFFSET_MS_MAX
        assert "clock.off" in world.names_told()

    run_world(shard_dsn, body)


def test_a_shards_time_that_was_long_on_its_way_moves_no_clock(shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        worker = await world.worker().join()
        timekeep = Timekeep(world.shard, world.clock, world.events)
        await timekeep.run_once(world.now_ms)
        followed, takes_ms = [], [0]
        monkeypatch.setattr(world.clock, "follow", lambda *asked: followed.append(asked) or 0)
        answer = Connection.run_all

        async def slowly(self: Connection, *arguments: object, **named: object) -> object:
            world.clock.advance(takes_ms[0])
            return await answer(self, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(Connection, "run_all", slowly)
        for takes_ms[0] in (SLOW_ANSWER_MS, SLOW_ANSWER_MS + 1):
            await worker.lease.run_once(world.now_ms)
            await timekeep.run_once(world.now_ms)
        assert len(followed) == 2

    run_world(shard_dsn, body)
