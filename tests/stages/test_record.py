"""Dropping days on a real shard: whole, behind the floor, and never under an open run or a long transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.config import Dsn, Settings
from engine.model import Cron, MissedRuns, Reason, RunAt, RunState
from engine.stages import record
from engine.stages.days import DAY_MS, DAY_START
from engine.stages.record import Record
from engine.store.connection import Row
from tests.support.wait import DEADLINE_S
from tests.support.world import PARTITIONS, World, run_world

RETENTION_DAYS = 30


@pytest.fixture(autouse=True)
def _always_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "QUIET_FROM_S", 0)
    monkeypatch.setattr(record, "QUIET_TO_S", 60)


def old_world(dsn: Dsn, body: Callable[[World, Record, int], Awaitable[None]]) -> None:
    """A world with days from 33 days ago on, floor and marks in their places; ``first_ms`` is where they begin."""

    async def with_days(world: World) -> None:
        today_ms = world.now_ms - world.now_ms % DAY_MS
        first_ms = today_ms - 33 * DAY_MS
        for table in ("runs", "attempts"):
            pieces = ", ".join(
                f"PARTITION d{n} VALUES LESS THAN ({first_ms + n * DAY_MS})" for n in range(1, 38)
            )
            pieces = f"PARTITION {DAY_START} VALUES LESS THAN (0), {pieces}"
            await world.rows(f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})")
        await world.rows(f"UPDATE floor SET floor_at = {first_ms}")
        settings = Settings(partition_count=PARTITIONS, retention_days=RETENTION_DAYS)
        await body(world, Record(world.shard, world.partitions, settings, world.events), first_ms)

    run_world(dsn, with_days)


async def days(world: World, table: str = "runs") -> list[str]:
    rows = await world.shard.execute("days_of_table", {"table_name": table})
    return [row[0] for row in rows.rows if row[0] != DAY_START]


async def holders(world: World) -> list[Row]:
    """Who holds runs for so long that a day is not dropped."""
    answer = await world.shard.execute("long_holders", {"table_name": "runs", "age_s": record.HOLDER_AGE_S})
    return list(answer.rows)


def kept(world: World) -> list[str]:
    return [fields["reason"] for name, fields in world.told if name == "day.kept"]


async def until_waiting_for_table(world: World) -> None:
    asked = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await world.rows(asked):
                return


async def record_all(world: World, stage: Record) -> None:
    while await stage.run_once(world.now_ms):
        pass


def test_days_older_than_the_retention_are_dropped_whole_and_no_younger_one(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        await record_all(world, stage)
        assert (await days(world))[0] == (await days(world, "attempts"))[0] == "d4"
        assert await world.rows("SELECT floor_at FROM floor") == [(first_ms + 3 * DAY_MS,)]
        assert world.names_told().count("day.dropped") == 3

    old_world(shard_dsn, body)


def test_p2_a_day_with_a_deferred_run_is_kept_until_that_has_ended(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        columns = "partition_id, scheduled_at, job_id, due_at, reason, priority"
        await world.rows(f"INSERT INTO deferred ({columns}) VALUES (1, {first_ms + 5}, 1, {world.now_ms}, 1, 2)")
        await record_all(world, stage)
        assert (await days(world))[0] == "d1"
        await world.rows("DELETE FROM deferred")
        await record_all(world, stage)
        assert (await days(world))[0] == "d4"

    old_world(shard_dsn, body)


def test_p2_a_day_above_a_mark_is_kept_since_an_open_run_may_stand_in_it(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        await world.rows(f"UPDATE marks SET mark_at = {first_ms} WHERE partition_id = 3")
        await record_all(world, stage)
        assert (await days(world))[0] == "d1"

    old_world(shard_dsn, body)


def test_a_long_reading_transaction_delays_the_drop_and_stalls_nobody(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        async with world.shard.transaction() as reader:
            await reader.run(b"SELECT COUNT(*) FROM runs")
            # Its age is told by the server's own timer, which may be some percent off.
            async with asyncio.timeout(DEADLINE_S):
                while not await holders(world):
                    pass
            await stage.run_once(world.now_ms)
            assert (await days(world))[0] == "d1"
            assert kept(world) == ["a long transaction"]
        await record_all(world, stage)
        assert (await days(world))[0] == "d4"

    old_world(shard_dsn, body)


def test_a_transaction_that_began_just_now_holds_up_the_drop_for_a_second_and_nobody_longer(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        async with world.shard.transaction() as reader:
            await reader.run(b"SELECT COUNT(*) FROM runs")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(record, "HOLDER_AGE_S", 60)
                dropping = asyncio.create_task(stage.run_once(world.now_ms))
                await until_waiting_for_table(world)
                # Behind the waiting DROP, but not for as long as a session waits for a row.
                await world.rows("SELECT COUNT(*) FROM runs")
                await dropping
            assert kept(world) == ["the table is busy"]
        await record_all(world, stage)
        assert (await days(world))[0] == (await days(world, "attempts"))[0] == "d4"

    old_world(shard_dsn, body)


def test_p8_a_catch_up_below_the_floor_is_one_skipped_record_and_no_run(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        await record_all(world, stage)
        job_id = await world.job("old", Cron("0 0 * * *"), missed_runs=MissedRuns.ALL, next_run_at_ms=first_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        rows = await world.rows(f"SELECT from_at, to_at, skipped, reason FROM skips WHERE job_id = {job_id}")
        assert rows == [(first_ms, first_ms + 2 * DAY_MS, 3, Reason.TOO_OLD)]
        assert await world.rows("SELECT MIN(scheduled_at) FROM runs") == [(first_ms + 3 * DAY_MS,)]

    old_world(shard_dsn, body)


def test_a_retention_made_longer_on_a_live_shard_keeps_what_is_there(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        longer = Settings(partition_count=PARTITIONS, retention_days=RETENTION_DAYS + 10)
        await record_all(world, Record(world.shard, world.partitions, longer, world.events))
        assert (await days(world))[0] == "d1"
        shorter = Settings(partition_count=PARTITIONS, retention_days=1)
        await record_all(world, Record(world.shard, world.partitions, shorter, world.events))
        assert (await days(world))[0] == "d33"
        await world.job("now", RunAt(world.second(1)))
        worker = await world.worker().join()
        await worker.plan_all()
        assert [state for _, state in await world.states()] == [RunState.RUNNING]

    old_world(shard_dsn, body)


def test_a_retention_made_shorter_and_longer_again_plans_nothing_into_days_that_are_gone(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        shorter = Settings(partition_count=PARTITIONS, retention_days=2)
        await record_all(world, Record(world.shard, world.partitions, shorter, world.events))
        oldest = (await days(world))[0]
        await record_all(world, stage)
        assert (await days(world))[0] == oldest
        today_ms = world.now_ms - world.now_ms % DAY_MS
        job_id = await world.job(
            "daily", Cron("0 0 * * *"), missed_runs=MissedRuns.ALL, next_run_at_ms=today_ms - 5 * DAY_MS
        )
        worker = await world.worker().join()
        await worker.plan_all()
        floor_ms = (await world.rows("SELECT floor_at FROM floor"))[0][0]
        times = await world.rows(f"SELECT MIN(scheduled_at) FROM runs WHERE job_id = {job_id}")
        assert times == [(floor_ms,)]
        skipped = await world.rows(f"SELECT reason, to_at FROM skips WHERE job_id = {job_id}")
        assert skipped == [(Reason.TOO_OLD, floor_ms - DAY_MS)]

    old_world(shard_dsn, body)


def test_rollups_are_dropped_by_themselves_after_31_days_whatever_the_retention(shard_dsn: Dsn) -> None:
    async def body(world: World, stage: Record, first_ms: int) -> None:
        for table in ("job_hours", "tenant_hours"):
            pieces = ", ".join(f"PARTITION h{n} VALUES LESS THAN ({first_ms + n * DAY_MS})" for n in range(1, 38))
            await world.rows(f"ALTER TABLE {table} PARTITION BY RANGE (hour_at) ({pieces})")
        longer = Settings(partition_count=PARTITIONS, retention_days=RETENTION_DAYS + 10)
        for _ in range(5):
            await Record(world.shard, world.partitions, longer, world.events).run_once(world.now_ms)
        assert (await days(world, "job_hours"))[0] == (await days(world, "tenant_hours"))[0] == "h3"
        assert (await days(world))[0] == "d1"

    old_world(shard_dsn, body)
