"""Days are made ahead on a real shard, also by a clock that is wrong, and missing ones lose nothing."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.model import RunAt, RunState
from engine.stages.days import DAY_MS, DAYS_AHEAD, DAYS_BACK, ROLLUPS, TABLES, Days
from engine.store.connection import MissingDay
from tests.support.world import World, run_world


async def ends(world: World, table: str = "runs") -> list[int]:
    """The ends of a table's days."""
    rows = (await world.shard.execute("days_of_table", {"table_name": table})).rows
    return [int(row[1]) for row in rows if int(row[1]) > 0]


async def made_by_a_clock_off(world: World, off_ms: int) -> Days:
    """A new shard's days, made anew by a clock of the shard that is wrong."""
    for table in (*TABLES, *ROLLUPS):
        column = "scheduled_at" if table in TABLES else "hour_at"
        await world.rows(
            f"ALTER TABLE {table} PARTITION BY RANGE ({column}) (PARTITION day_start VALUES LESS THAN (0))"
        )
    days, right = Days(world.shard, world.events), world.shard.now_ms
    with pytest.MonkeyPatch.context() as patch:

        async def wrong() -> int:
            return await right() + off_ms

        patch.setattr(world.shard, "now_ms", wrong)
        await days.run_once(world.now_ms + off_ms)
    return days


@pytest.mark.parametrize("off_days", [-1, 1])
def test_p2_days_made_by_a_clock_that_is_a_day_off_hold_what_is_planned_now(shard_dsn: Dsn, off_days: int) -> None:
    async def body(world: World) -> None:
        days = await made_by_a_clock_off(world, off_days * DAY_MS)
        await world.job("now", RunAt(world.second(1)))
        await world.job("just-missed", RunAt(world.second(-100)))
        worker = await world.worker().join()
        await worker.plan_all()
        assert [state for _, state in await world.states()] == [RunState.WAITING, RunState.RUNNING]
        await days.run_once(world.now_ms)
        today_ms = world.now_ms - world.now_ms % DAY_MS
        for table in (*TABLES, *ROLLUPS):
            there = await ends(world, table)
            assert there == sorted(set(there))
            assert there[0] <= today_ms + (off_days - DAYS_BACK) * DAY_MS
            assert there[-1] >= today_ms + (DAYS_AHEAD + 1) * DAY_MS
        assert len(await world.states()) == 2

    run_world(shard_dsn, body)


def test_p2_where_no_day_is_made_yet_nothing_is_planned_and_nothing_lost(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        days = await made_by_a_clock_off(world, -(DAYS_AHEAD + DAYS_BACK + 5) * DAY_MS)
        await world.job("now", RunAt(world.second(1)))
        worker = await world.worker().join()
        with pytest.raises(MissingDay):
            await worker.plan_all()
        assert await world.states() == []
        await days.run_once(world.now_ms)
        await worker.plan_all()
        assert [state for _, state in await world.states()] == [RunState.RUNNING]

    run_world(shard_dsn, body)
