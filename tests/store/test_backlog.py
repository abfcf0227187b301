"""What looks for silent holders reads what is held, and not what waits: a backlog costs it nothing."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.rules.lanes import held_lane, taken_lane
from engine.store.statements import Value
from tests.support.world import PARTITIONS, TENANT, World, run_world

BACKLOG = 2_000
FAR_MS = 1 << 50
HELD = {"lanes": [held_lane(number) for number in range(PARTITIONS)]}
TAKEN = {"lanes": [taken_lane(number) for number in range(PARTITIONS)]}
LOOKS: list[tuple[str, dict[str, Value]]] = [
    ("orphaned_runs", {**TAKEN, "now_ms": FAR_MS, "lost_before": FAR_MS, "rows_max": 1_000}),
    ("deferred_held_by_worker", {**TAKEN, "worker_id": 9, "rows_max": 1_000}),
    ("lapsed_work", {**HELD, "now_ms": FAR_MS, "silence_counts": 1, "over_before": FAR_MS, "rows_max": 1_000}),
]


async def rows_read(world: World, name: str, values: dict[str, Value]) -> int:
    """How many entries of indexes and rows a statement touches, by the server's own count."""
    async with world.shard.connection() as connection:
        await connection.run(b"FLUSH STATUS")
        assert (await connection.execute(name, values)).rows == ()
        counts = (await connection.run(b"SHOW SESSION STATUS LIKE 'Handler_read%'")).rows
        return sum(int(count) for _, count in counts)


@pytest.mark.parametrize(("name", "values"), LOOKS)
def test_a_look_for_silent_holders_reads_nothing_that_waits(
    shard_dsn: Dsn, name: str, values: dict[str, Value]
) -> None:
    async def body(world: World) -> None:
        empty = await rows_read(world, name, values)
        at_ms = world.now_ms - 60_000
        keys = [(n % PARTITIONS, at_ms + n, n) for n in range(BACKLOG)]
        runs = ", ".join(f"({', '.join(map(str, key))}, {TENANT}, 1, 3, {key[2] % 4}, 1, 1)" for key in keys)
        await world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            f" attempt) VALUES {runs}"
        )
        due = ", ".join(f"({', '.join(map(str, key))}, {key[1]}, 1, {key[2] % 4})" for key in keys)
        await world.rows(
            f"INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority) VALUES {due}"
        )
        await world.rows("ANALYZE TABLE deferred, runs")
        assert await rows_read(world, name, values) <= empty + 2 * PARTITIONS * 4

    run_world(shard_dsn, body)
