"""Counting on a real shard: every ended run once, whatever ends late, begins again or is interrupted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from engine.config import Dsn
from engine.model import HOUR_MS, Cron, MissedRuns, RunAt, RunState, partition_of
from engine.stages import rollup as module
from engine.stages.days import DAY_MS
from engine.stages.record import Record
from engine.stages.rollup import RECOUNT_AGE_PARTS, Rollup
from engine.store.connection import Connection
from engine.store.dead_letters import retry_dead_letters
from engine.store.lists import Named
from engine.store.rollups import RECOUNT_MS, RUNS_MIN, Sums, job_sums, tenant_sums
from tests.support.world import PARTITIONS, SETTINGS, TENANT, World, key_of, run_world

LAG_MS, DURATION_MS = 7, 30


class Hour:
    """An hour that is over, and the stage that is to count it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at_ms = world.now_ms - world.now_ms % HOUR_MS - 2 * HOUR_MS
        self.stage = Rollup(world.shard, world.partitions, world.clock, world.events)

    async def passed(self) -> None:
        """The mark has passed it, and nothing is counted of it yet."""
        await self.world.rows(f"UPDATE marks SET mark_at = {self.at_ms}")
        await self.stage.run_once(self.world.now_ms)
        await self.world.rows(f"UPDATE marks SET mark_at = {self.at_ms + HOUR_MS}")

    async def job(self, name: str) -> Named:
        job_id = await self.world.job(name, RunAt(self.at_ms + HOUR_MS), next_run_at_ms=self.at_ms + 10 * DAY_MS)
        return Named(partition_of(TENANT, name, PARTITIONS), job_id, self.at_ms, True)

    async def add(self, job: Named, *states: RunState) -> None:
        """A run a second, of these states."""
        rows = [
            (job.partition_id, self.at_ms + n * 1000, job.job_id, TENANT, 1, int(state), 2, 1, 1,
             self.at_ms + n * 1000 + LAG_MS, self.at_ms + n * 1000 + LAG_MS + DURATION_MS)
            for n, state in enumerate(states)
        ]  # fmt: skip
        columns = "partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind, attempt"
        values = ", ".join(map(str, rows))
        await self.world.rows(f"INSERT INTO runs ({columns}, started_at, finished_at) VALUES {values}")

    async def count(self) -> None:
        while await self.stage.run_once(self.world.now_ms):
            pass

    async def recount(self) -> None:
        """As if the pause before an hour is counted anew were over."""
        await self.world.rows("UPDATE recounts SET due_at = 0")
        await self.count()

    async def of_tenant(self) -> Sums:
        (counted,) = await tenant_sums(self.world.shard, TENANT, [(self.at_ms, self.at_ms + HOUR_MS)])
        return counted.sums

    async def of_job(self, job: Named) -> Sums:
        (counted,) = await job_sums(self.world.shard, job, [(self.at_ms, self.at_ms + HOUR_MS)])
        return counted.sums


def run_hour(dsn: Dsn, body: Callable[[Hour], Awaitable[None]]) -> None:
    async def with_hour(world: World) -> None:
        hour = Hour(world)
        await world.rows(f"UPDATE floor SET floor_at = {hour.at_ms - DAY_MS}")
        await hour.passed()
        await body(hour)

    run_world(dsn, with_hour)


def called(succeeded: int, failed: int = 0) -> Sums:
    runs = succeeded + failed
    return Sums(succeeded, failed, 0, 0, runs, runs * LAG_MS, LAG_MS, runs * DURATION_MS, DURATION_MS)


def test_ended_runs_of_an_hour_are_counted_once_by_tenant_and_busy_job(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        busy, quiet = await hour.job("busy"), await hour.job("quiet")
        await hour.add(busy, *[RunState.SUCCEEDED] * (RUNS_MIN - 1), RunState.FAILED, RunState.WITHDRAWN)
        await hour.add(quiet, RunState.SUCCEEDED)
        for _ in range(2):
            await hour.count()
            assert await hour.of_tenant() == called(RUNS_MIN, 1)
            assert await hour.world.rows("SELECT job_id, succeeded FROM job_hours") == [(busy.job_id, RUNS_MIN - 1)]
            assert await hour.of_job(busy) == called(RUNS_MIN - 1, 1)
            assert await hour.of_job(quiet) == called(1)

    run_hour(shard_dsn, body)


def test_a_run_without_a_call_has_no_lag(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, RunState.SKIPPED, RunState.CANCELLED, RunState.SUCCEEDED)
        await hour.world.rows("UPDATE runs SET started_at = NULL WHERE state IN (6, 7)")
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(1)._replace(cancelled=1, skipped=1)

    run_hour(shard_dsn, body)


def test_a_run_that_ends_after_its_hour_was_counted_is_counted_then(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, RunState.WAITING, *[RunState.SUCCEEDED] * RUNS_MIN)
        await hour.world.rows(
            "INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority)"
            f" VALUES ({job.partition_id}, {hour.at_ms}, {job.job_id}, {hour.at_ms}, 1, 2)"
        )
        await hour.count()
        assert await hour.of_tenant() == called(RUNS_MIN)
        await hour.recount()
        assert await hour.of_tenant() == called(RUNS_MIN)
        (due,) = await hour.world.rows("SELECT due_at FROM recounts")
        age_ms = hour.world.now_ms - hour.at_ms - HOUR_MS
        assert due[0] >= hour.world.now_ms + max(RECOUNT_MS, age_ms // RECOUNT_AGE_PARTS)
        await hour.world.rows("UPDATE runs SET state = 4 WHERE state = 3")
        await hour.world.rows("DELETE FROM deferred")
        await hour.recount()
        assert await hour.of_tenant() == await hour.of_job(job) == called(RUNS_MIN + 1)
        assert await hour.world.rows("SELECT COUNT(*) FROM recounts") == [(0,)]

    run_hour(shard_dsn, body)


def test_what_ended_late_is_counted_before_its_day_goes(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        world, job = hour.world, await hour.job("a")
        await hour.add(job, RunState.WAITING, *[RunState.SUCCEEDED] * RUNS_MIN)
        await world.rows(
            "INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority)"
            f" VALUES ({job.partition_id}, {hour.at_ms}, {job.job_id}, {hour.at_ms}, 1, 2)"
        )
        await hour.count()
        await world.rows("UPDATE runs SET state = 4 WHERE state = 3")
        await world.rows("DELETE FROM deferred")
        below = {"partitions": [job.partition_id], "until_at": hour.at_ms + HOUR_MS}
        await hour.count()
        assert await hour.of_tenant() == called(RUNS_MIN)  # its pause is not over
        assert list((await world.shard.execute("counted_below", below)).rows) == [(job.partition_id,)]
        await world.rows(f"UPDATE floor SET floor_at = {hour.at_ms + HOUR_MS}, closed_to = floor_at")
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(RUNS_MIN + 1)
        assert not (await world.shard.execute("counted_below", below)).rows

    run_hour(shard_dsn, body)


def test_a_dead_letter_that_is_tried_again_counts_as_what_it_becomes(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        world, job = hour.world, await hour.job("a")
        await hour.add(job, RunState.FAILED)
        await world.rows(
            "INSERT INTO dead_letters (partition_id, scheduled_at, job_id, tenant_id, name, version, state, priority,"
            f" trigger_kind, attempt, tries, died_at) VALUES ({job.partition_id}, {hour.at_ms}, {job.job_id}, {TENANT},"
            " 'a', 1, 5, 2, 1, 1, 5, 1)"
        )
        await hour.count()
        assert await hour.of_tenant() == called(0, 1)
        assert await retry_dead_letters(world.shard, TENANT, [key_of(job.job_id, "a", hour.at_ms)]) == 1
        await hour.recount()
        assert await hour.of_tenant() == Sums()
        times = f"started_at = {hour.at_ms + LAG_MS}, finished_at = {hour.at_ms + LAG_MS + DURATION_MS}"
        await world.rows(f"UPDATE runs SET state = 4, {times}")
        await world.rows("DELETE FROM deferred")
        await hour.recount()
        assert await hour.of_tenant() == await hour.of_job(job) == called(1)

    run_hour(shard_dsn, body)


def test_a_time_caught_up_in_an_hour_that_was_counted_is_counted(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        world = hour.world
        await hour.count()
        await world.job("late", Cron("0 * * * *"), missed_runs=MissedRuns.ALL, next_run_at_ms=hour.at_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        noted = await world.rows("SELECT hour_at FROM recounts")
        assert (hour.at_ms,) in noted
        await world.rows(f"UPDATE runs SET state = 4, started_at = {world.now_ms}, finished_at = {world.now_ms}")
        await world.rows("DELETE FROM deferred")
        await hour.recount()
        assert (await hour.of_tenant()).succeeded == 1

    run_hour(shard_dsn, body)


def test_what_is_noted_while_its_hour_is_counted_anew_stays_noted(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        await hour.count()
        note = f"INSERT INTO recounts VALUES (1, {hour.at_ms}, 0, 1) ON DUPLICATE KEY UPDATE marks = marks + 1"
        await hour.world.rows(note)
        execute = Connection.execute

        async def noted_meanwhile(self: Connection, name: str, *more: object) -> object:
            if name == "count_tenants":
                await hour.world.rows(note)
            return await execute(self, name, *more)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "execute", noted_meanwhile)
            await hour.stage.run_once(hour.world.now_ms)
        assert await hour.world.rows("SELECT marks FROM recounts") == [(2,)]
        await hour.count()
        assert await hour.world.rows("SELECT marks FROM recounts") == []

    run_hour(shard_dsn, body)


def test_counting_that_is_cut_off_anywhere_leaves_the_hour_to_be_counted(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, *[RunState.SUCCEEDED] * RUNS_MIN)
        execute = Connection.execute
        for statement in ("count_tenants", "count_busy_jobs", "move_counted"):

            async def cut_off(self: Connection, name: str, *more: object, cut: str = statement) -> object:
                answer = await execute(self, name, *more)  # type: ignore[arg-type]
                if name == cut:
                    raise ConnectionAbortedError(cut)
                return answer

            with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionAbortedError):
                patch.setattr(Connection, "execute", cut_off)
                await hour.count()
        assert await hour.of_tenant() == Sums()
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(RUNS_MIN)

    run_hour(shard_dsn, body)


def test_two_keepers_count_an_hour_once_and_none_waits_for_the_other(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, *[RunState.SUCCEEDED] * RUNS_MIN)
        async with hour.world.shard.transaction() as other:
            await other.execute("lock_counted", {"partition_id": job.partition_id})
            await hour.count()
            assert "count.busy" in hour.world.names_told()
        await hour.count()
        assert await hour.of_tenant() == called(RUNS_MIN)

    run_hour(shard_dsn, body)


def test_the_hour_that_is_not_over_is_seen_as_far_as_the_mark(shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_TIMES", 0)

    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, *[RunState.SUCCEEDED] * 300)
        for minutes in (2, 4):
            await hour.world.rows(f"UPDATE marks SET mark_at = {hour.at_ms + minutes * 60_000}")
            await hour.count()
            assert await hour.of_tenant() == called(minutes * 60)
            assert await hour.of_job(job) == called(300)
        await hour.world.rows(f"UPDATE marks SET mark_at = {hour.at_ms + HOUR_MS}")
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(300)

    run_hour(shard_dsn, body)


def test_an_hour_that_is_noted_before_it_is_over_is_not_counted_as_if_it_were(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, *[RunState.SUCCEEDED] * 300)
        await hour.world.rows(f"UPDATE marks SET mark_at = {hour.at_ms + 60_000}")
        await hour.world.rows(f"INSERT INTO recounts VALUES ({job.partition_id}, {hour.at_ms}, 0, 1)")
        await hour.count()
        assert await hour.of_tenant() == called(60)
        await hour.world.rows(f"UPDATE marks SET mark_at = {hour.at_ms + HOUR_MS}")
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(300)
        assert await hour.world.rows("SELECT COUNT(*) FROM recounts") == [(0,)]

    run_hour(shard_dsn, body)


def test_a_run_that_ends_below_the_floor_while_its_day_is_there_is_counted(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, RunState.WAITING)
        await hour.count()
        await hour.world.rows(f"UPDATE floor SET floor_at = {hour.at_ms + HOUR_MS}")
        await hour.world.rows("UPDATE runs SET state = 4")
        await hour.world.rows(f"INSERT INTO recounts VALUES ({job.partition_id}, {hour.at_ms}, 0, 1)")
        await hour.count()
        assert await hour.of_tenant() == called(1)

    run_hour(shard_dsn, body)


def test_an_hour_whose_day_is_gone_keeps_what_was_counted_of_it(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        job = await hour.job("a")
        await hour.add(job, *[RunState.SUCCEEDED] * RUNS_MIN)
        await hour.count()
        await hour.world.rows(f"UPDATE floor SET floor_at = {hour.at_ms + HOUR_MS}")
        await hour.world.rows("DELETE FROM runs")
        await hour.world.rows(f"INSERT INTO recounts VALUES ({job.partition_id}, {hour.at_ms}, 0, 1)")
        await hour.count()
        assert await hour.of_tenant() == await hour.of_job(job) == called(RUNS_MIN)
        assert await hour.world.rows("SELECT COUNT(*) FROM recounts") == [(0,)]

    run_hour(shard_dsn, body)


def test_a_day_is_kept_until_it_is_counted(shard_dsn: Dsn) -> None:
    async def body(hour: Hour) -> None:
        world = hour.world
        stage = Record(world.shard, world.partitions, SETTINGS, world.events)
        assert await stage._needed(hour.at_ms + HOUR_MS) == "not counted yet"
        await hour.count()
        assert await stage._needed(hour.at_ms + HOUR_MS) is None

    run_hour(shard_dsn, body)
