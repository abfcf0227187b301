"""What bench history measures stands on the rows that it writes and on the moments that it chooses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.history import _quiet_from
from bench.history_rows import DAY_MS, FIRST_JOB, fill_days, fill_oldest_day, first_day_ms
from engine.config import Dsn
from engine.stages.record import QUIET_FROM_S, QUIET_TO_S
from engine.store.statements import Name
from tests.support.world import World, run_world

DAYS, RUNS = 3, 48


def test_days_are_filled_evenly_and_the_oldest_one_anew_after_it_was_dropped(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        here = SimpleNamespace(shards=[world.shard], partitions=len(world.partitions), progress=lambda text: None)
        first_ms = first_day_ms(world.now_ms, DAYS)
        await fill_days(here, first_ms, DAYS, RUNS)  # type: ignore[arg-type]
        by_day = f"SELECT (scheduled_at - {first_ms}) DIV {DAY_MS} AS day, COUNT(*) FROM runs GROUP BY day ORDER BY day"
        assert await world.rows(by_day) == [(0, 16), (1, 16), (2, 16)]
        for _ in range(2):
            await fill_oldest_day(here, first_ms, RUNS)  # type: ignore[arg-type]
            oldest = f"SELECT COUNT(*), MIN(job_id), MAX(state) FROM runs WHERE scheduled_at < {first_ms}"
            assert await world.rows(oldest) == [(RUNS, FIRST_JOB, 4)]
            day = (await world.shard.execute("days_of_table", {"table_name": "runs"})).rows[1]
            assert int(day[1]) == first_ms
            for table in ("runs", "attempts"):
                for step in (f"empty_day_of_{table}", f"merge_day_of_{table}"):
                    await world.shard.execute(step, {"day": Name(day[0]), "until_at": first_ms})

    run_world(shard_dsn, body)


@pytest.mark.parametrize("second", range(0, 60, 5))
def test_the_drop_waits_for_a_moment_in_which_the_keeper_would_do_it(second: int) -> None:
    at_ms = 1_800_000_000_000 + second * 1_000
    chosen_ms = _quiet_from(at_ms)
    assert at_ms <= chosen_ms < at_ms + 60_000
    assert QUIET_FROM_S <= chosen_ms // 1000 % 60 < QUIET_TO_S
