"""Removal on a real shard: what has had its time goes, what is alive or remembered stays."""

from __future__ import annotations

from engine.config import Dsn
from engine.model import Cron, RunAt
from engine.stages.days import DAY_MS
from engine.stages.tidy import Tidy
from tests.support.world import SETTINGS, World, run_world


async def tidied(world: World) -> list[str]:
    """The names of the jobs that are left."""
    await Tidy(world.shard, world.partitions, SETTINGS, world.events).run_once(world.now_ms)
    return [row[0] for row in await world.rows("SELECT name FROM jobs ORDER BY name")]


def test_a_finished_job_goes_30_days_after_its_last_run_with_all_that_belongs_to_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old_ms = world.now_ms - 31 * DAY_MS
        for name in ("finished", "just-finished", "waits-since-long"):
            await world.job(name, RunAt(world.second(100)), labels=(("team", name),))
        await world.rows(
            "INSERT INTO job_labels SELECT tenant_id, 'team', name, name, partition_id, job_id FROM jobs"
        )
        await world.rows(f"UPDATE jobs SET updated_at = {old_ms}")
        await world.rows(
            f"UPDATE jobs SET next_run_at = NULL, last_run_at = {old_ms} WHERE name = 'finished'"
        )
        await world.rows(
            f"UPDATE jobs SET next_run_at = NULL, last_run_at = {old_ms + 2 * DAY_MS} WHERE name = 'just-finished'"
        )
        assert await tidied(world) == ["just-finished", "waits-since-long"]
        assert await world.rows("SELECT COUNT(*) FROM job_versions") == [(2,)]
        assert await world.rows("SELECT COUNT(*) FROM job_labels") == [(2,)]

    run_world(shard_dsn, body)


def test_a_paused_job_stays_however_long_and_a_deleted_one_goes_with_its_history(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old_ms = world.now_ms - 31 * DAY_MS
        await world.job("paused", Cron("0 9 * * *"))
        await world.job("deleted", Cron("0 9 * * *"))
        await world.rows(f"UPDATE jobs SET state = 2, next_run_at = NULL, updated_at = {old_ms} WHERE name = 'paused'")
        await world.rows(f"UPDATE jobs SET state = 4, next_run_at = NULL, updated_at = {old_ms} WHERE name = 'deleted'")
        assert await tidied(world) == ["paused"]

    run_world(shard_dsn, body)


def test_dead_letters_go_after_14_days_unless_they_are_being_tried_again(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        columns = (
            "partition_id, scheduled_at, job_id, tenant_id, name, version, state, priority, trigger_kind, attempt,"
            " tries, died_at"
        )
        for job_id, state, age_days in ((1, 5, 15), (2, 5, 13), (3, 3, 15)):
            died_at = world.now_ms - age_days * DAY_MS
            await world.rows(
                f"INSERT INTO dead_letters ({columns})"
                f" VALUES (1, 1, {job_id}, 7, 'x', 1, {state}, 2, 1, 1, 1, {died_at})"
            )
        await tidied(world)
        assert await world.rows("SELECT job_id FROM dead_letters ORDER BY job_id") == [(2,), (3,)]

    run_world(shard_dsn, body)


def test_idempotency_keys_are_kept_for_a_day(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        for number, age_ms in enumerate((DAY_MS + 60_000, DAY_MS - 60_000)):
            key, written_at = bytes([number]) * 32, world.now_ms - age_ms
            await world.rows(
                "INSERT INTO requests (tenant_id, key_hash, body_hash, written_at)"
                f" VALUES (7, X'{key.hex()}', X'{key.hex()}', {written_at})"
            )
        await tidied(world)
        assert await world.rows("SELECT COUNT(*) FROM requests") == [(1,)]

    run_world(shard_dsn, body)
