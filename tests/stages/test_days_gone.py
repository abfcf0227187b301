"""A dead letter outlives its run's day, and is retried all the same: one run, one key, one outcome at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from engine.config import Dsn
from engine.model import (
    FunctionTarget,
    NoticeKind,
    OutcomeKind,
    Overlap,
    Reason,
    RetryPolicy,
    RunAt,
    RunKey,
    RunState,
    idempotency_key,
    partition_of,
)
from engine.rules.changes import HELD_UNTIL_MS
from engine.rules.lanes import workers_lane
from engine.rules.work import Deed
from engine.stages import record
from engine.stages.days import DAY_MS
from engine.stages.held import HeldRun
from engine.stages.record import Record
from engine.stages.rollup import Rollup
from engine.stages.tidy import DEAD_LETTERS_KEPT_MS, Tidy
from engine.stages.work import Claimed, Class, End, Fence, Stale, Work, WorkRow, new_door
from engine.store.changes import Windows, cancel_run, delete_job, pause_job, resume_job
from engine.store.dead_letters import delete_dead_letters, is_going, retry_dead_letters
from engine.store.jobs import find_jobs
from tests.support.world import PARTITIONS, SETTINGS, TENANT, Worker, World, run_world

ONCE = RetryPolicy(max_attempts=1)
# The retention, in days; the runs that died are older by one.
KEPT = 3


@pytest.fixture(autouse=True)
def _always_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "QUIET_FROM_S", 0)
    monkeypatch.setattr(record, "QUIET_TO_S", 60)


class Gone:
    """A job whose run has failed for good at a time whose day is old enough to go; time goes on around it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settings = dataclasses.replace(SETTINGS, retention_days=KEPT)
        self.record = Record(world.shard, world.partitions, self.settings, world.events)
        self.today_ms = world.now_ms - world.now_ms % DAY_MS

    async def cut(self) -> Gone:
        """Days from so long ago on that one of them is too old."""
        for table in ("runs", "attempts", "reports"):
            ends = [self.today_ms + n * DAY_MS for n in range(-KEPT, 4)]
            days = ", ".join(f"PARTITION d{n} VALUES LESS THAN ({end})" for n, end in enumerate(ends))
            pieces = f"PARTITION day_start VALUES LESS THAN (0), {days}"
            await self.world.rows(f"ALTER TABLE {table} PARTITION BY RANGE (scheduled_at) ({pieces})")
        await self.world.rows(f"UPDATE floor SET floor_at = {self.today_ms - (KEPT + 1) * DAY_MS}")
        return self

    async def died(self, name: str = "job", hour: int = 5, **settings: object) -> RunKey:
        """A run of the oldest day that failed for good, as it was settled then."""
        at_ms = self.today_ms - KEPT * DAY_MS - hour * 3_600_000
        job_id = await self.world.job(name, RunAt(at_ms), **({"retry": ONCE} | settings))
        await self.world.rows(f"UPDATE jobs SET next_run_at = NULL, last_run_at = {at_ms} WHERE job_id = {job_id}")
        key = RunKey(partition_of(TENANT, name, PARTITIONS), at_ms, job_id)
        place = f"{key.partition_id}, {key.scheduled_at_ms}, {key.job_id}"
        await self.world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            " attempt, tries, worker_id, lease_until, outcome, status_code, started_at, finished_at)"
            f" VALUES ({place}, {TENANT}, 1, 5, 2, 1, 4, 1, 77, {at_ms}, 1, 500, {at_ms + 5}, {at_ms + 9})"
        )
        async with self.world.shard.transaction() as connection:
            bounds = {"from_at": at_ms, "to_at": at_ms, "now_ms": at_ms + 9}
            await connection.execute_rows("insert_dead_letters", [key], bounds, bytes_max=1 << 20)
        return key

    async def drop(self) -> list[str]:
        """The keeper's step, until nothing more goes; the days that are left."""
        while await self.record.run_once(self.world.now_ms):
            pass
        return await self.days()

    async def days(self) -> list[str]:
        rows = (await self.world.shard.execute("days_of_table", {"table_name": "runs"})).rows
        return [row[0] for row in rows if row[0] != "day_start"]

    async def retry(self, *keys: RunKey) -> int:
        return await retry_dead_letters(self.world.shard, TENANT, keys)

    async def state(self, key: RunKey) -> tuple[int, ...]:
        """State, attempt and tries, of the piece that never goes; nothing where there is no row."""
        where = f"scheduled_at = {key.scheduled_at_ms} AND job_id = {key.job_id}"
        rows = await self.world.rows(
            f"SELECT state, attempt, tries FROM runs PARTITION (day_start) WHERE {where}"
        )
        return rows[0] if rows else ()

    async def count(self, table: str) -> int:
        return (await self.world.rows(f"SELECT COUNT(*) FROM {table}"))[0][0]

    async def on_time(self) -> None:
        """What was made due by the shard's time is due by ours."""
        self.world.clock.wall_ms = max(self.world.now_ms, await self.world.shard.now_ms())

    async def claimed(self, key: RunKey, worker: Worker | None = None) -> tuple[Worker, HeldRun]:
        await self.on_time()
        worker = worker or await self.world.worker().join()
        await worker.claim.run_once(self.world.now_ms)
        (run,) = [run for run in worker.runs() if run.key == key]
        return worker, run


def gone_world(dsn: Dsn, body: Callable[[Gone], Awaitable[None]]) -> None:
    async def cut(world: World) -> None:
        await body(await Gone(world).cut())

    run_world(dsn, cut)


def retried(dsn: Dsn, body: Callable[[Gone, RunKey], Awaitable[None]], **settings: object) -> None:
    """The same with one dead letter, its day gone, and retried."""

    async def retry(gone: Gone) -> None:
        key = await gone.died(**settings)
        assert await gone.drop() == ["d1", "d2", "d3", "d4", "d5", "d6"]
        assert await gone.count("runs") == 0
        assert await gone.retry(key) == 1
        await body(gone, key)

    gone_world(dsn, retry)


def test_p3_a_dead_letter_whose_day_has_gone_is_run_again_under_the_next_attempt(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        assert await gone.state(key) == (RunState.WAITING, 4, 0)
        assert await gone.count("dead_letters") == 0
        worker, run = await gone.claimed(key)
        assert (run.attempt, run.tries, run.version) == (5, 0, 1)
        assert idempotency_key(run.key.job_id, run.key.scheduled_at_ms) == idempotency_key(key.job_id, key[1])
        await worker.end(run)
        assert await gone.state(key) == (RunState.SUCCEEDED, 5, 1)
        assert await gone.count("deferred") == await gone.count("dead_letters") == 0

    retried(shard_dsn, body)


def test_p2_one_that_fails_again_is_a_dead_letter_again_and_its_tenant_is_told(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        worker = await gone.world.worker().join()
        for attempt in (5, 6):
            _, run = await gone.claimed(key, worker)
            await worker.end(run, 500)
            assert await gone.state(key) == (RunState.FAILED, attempt, 1)
            letters = await gone.world.rows("SELECT state, attempt, tries, status_code FROM dead_letters")
            assert letters == [(RunState.FAILED, attempt, 1, 500)]
            assert await gone.world.rows("SELECT kind, run_at FROM notices") == [(NoticeKind.FAILED, key[1])]
            assert await gone.count("attempts") == attempt - 4
            assert await gone.retry(key) == 1
        assert await gone.state(key) == (RunState.WAITING, 6, 0)

    retried(shard_dsn, body)


def test_of_a_filter_those_whose_day_is_there_and_those_whose_day_has_gone_are_retried_at_once(shard_dsn: Dsn) -> None:
    async def body(gone: Gone) -> None:
        old = [await gone.died(f"old-{n}", n) for n in range(3)]
        await gone.drop()
        young = [await gone.died(f"young-{n}", n - 24) for n in range(3)]
        assert await gone.retry(*old, *young) == 6
        assert await gone.retry(*old, *young) == 0
        assert await gone.count("deferred") == 6
        await gone.on_time()
        worker = await gone.world.worker().join()
        await worker.claim.run_once(gone.world.now_ms)
        assert {run.key for run in worker.runs()} == {*old, *young}

    gone_world(shard_dsn, body)


def test_p2_one_that_is_open_holds_up_no_other_day_and_goes_with_none(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        await gone.claimed(key)
        for kept in (2, 1):
            settings = dataclasses.replace(SETTINGS, retention_days=kept)
            gone.record = Record(gone.world.shard, gone.world.partitions, settings, gone.world.events)
            days = await gone.drop()
        assert days == ["d3", "d4", "d5", "d6"]
        assert await gone.state(key) == (RunState.RUNNING, 5, 0)
        await gone.world.sweep().run_once(gone.world.now_ms)
        assert await gone.count("deferred") == 1

    retried(shard_dsn, body)


def test_p2_a_day_that_is_closed_is_not_retried_from_until_it_has_gone(shard_dsn: Dsn) -> None:
    """Else a run would become open behind the keeper that has looked, and go with the day."""

    async def body(gone: Gone) -> None:
        key = await gone.died()
        drop = gone.record._drop

        async def killed(*_: object) -> bool:
            return False

        gone.record._drop = killed  # type: ignore[method-assign]
        await gone.record.run_once(gone.world.now_ms)
        assert await is_going(gone.world.shard, key)
        assert await gone.retry(key) == 0
        assert await gone.count("dead_letters") == 1
        gone.record._drop = drop  # type: ignore[method-assign]
        await gone.drop()
        assert not await is_going(gone.world.shard, key)
        assert await gone.retry(key) == 1

    gone_world(shard_dsn, body)


def test_p2_a_retry_that_is_committed_while_the_keeper_looks_keeps_its_day(shard_dsn: Dsn) -> None:
    async def body(gone: Gone) -> None:
        key = await gone.died()
        look, looks = gone.record._open, []

        async def slow(*values: int) -> str | None:
            found = await look(*values)
            if not looks:
                assert await gone.retry(key) == 1
            looks.append(found)
            return found

        gone.record._open = slow  # type: ignore[method-assign]
        assert (await gone.drop())[0] == "d0"
        assert looks == [None, "open runs"]
        worker, run = await gone.claimed(key)
        await worker.end(run)
        assert (await gone.drop())[0] == "d0"  # what the run has become is not counted yet
        await Rollup(gone.world.shard, gone.world.partitions, gone.world.clock, gone.world.events).run_once(0)
        assert (await gone.drop())[0] == "d1"

    gone_world(shard_dsn, body)


@pytest.mark.parametrize("killed_after", ["empty_day_of_runs", "merge_day_of_runs"])
def test_p10_a_keeper_killed_between_two_steps_of_a_drop_leaves_the_rest_to_the_next(
    shard_dsn: Dsn, killed_after: str
) -> None:
    async def body(gone: Gone) -> None:
        key = await gone.died()
        connect, killed = gone.world.shard.connection, list[str]()

        class Killed(BaseException):
            pass

        def killing() -> object:
            opened = connect()
            enter = opened.__aenter__

            async def entered() -> object:
                connection = await enter()
                execute = connection.execute

                async def executed(name: str, *values: object) -> object:
                    answer = await execute(name, *values)
                    if name == killed_after and not killed:
                        killed.append(name)
                        raise Killed
                    return answer

                connection.execute = executed
                return connection

            return _Opened(entered, opened.__aexit__)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gone.world.shard, "connection", killing)
            with pytest.raises(Killed):
                await gone.record.run_once(gone.world.now_ms)
        assert await gone.retry(key) == 0
        assert (await gone.drop())[0] == "d1"
        assert await gone.retry(key) == 1
        await gone.claimed(key)

    gone_world(shard_dsn, body)


class _Opened:
    def __init__(self, enter: object, leave: object) -> None:
        self._enter, self._leave = enter, leave

    async def __aenter__(self) -> object:
        return await self._enter()  # type: ignore[operator]

    async def __aexit__(self, *error: object) -> object:
        return await self._leave(*error)  # type: ignore[operator]


def test_p2_a_keeper_that_slept_drops_nothing_that_was_retried_since(shard_dsn: Dsn) -> None:
    async def body(gone: Gone) -> None:
        key = await gone.died()
        other = Record(gone.world.shard, gone.world.partitions, gone.settings, gone.world.events)
        look = gone.record._days

        async def slept(table: str) -> object:
            days = await look(table)
            if table == "runs" and "attempts" in looked:
                while await other.run_once(gone.world.now_ms):
                    pass
                assert await gone.retry(key) == 1
            looked.append(table)
            return days

        looked: list[str] = []
        gone.record._days = slept  # type: ignore[method-assign, assignment]
        with pytest.raises(Exception, match="partition"):
            await gone.record.run_once(gone.world.now_ms)
        assert await gone.state(key) == (RunState.WAITING, 4, 0)

    gone_world(shard_dsn, body)


def test_p3_of_two_that_retry_it_one_puts_it_back(shard_dsn: Dsn) -> None:
    async def body(gone: Gone) -> None:
        key = await gone.died()
        await gone.drop()
        async with gone.world.shard.transaction() as connection:
            rows = await connection.fetch_rows(
                "lock_letters_of_gone_days", [key], {"tenant_id": TENANT}, bytes_max=1 << 20
            )
            assert len(rows) == 1
            await connection.rollback()
        assert [await gone.retry(key), await gone.retry(key), await gone.count("runs")] == [1, 0, 1]
        assert await delete_dead_letters(gone.world.shard, TENANT, [key]) == 0

    gone_world(shard_dsn, body)


def test_p3_a_stale_worker_settles_nothing_of_a_run_that_was_retried_once_more(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        stale, old = await gone.claimed(key)
        await stale.lease.run_once(gone.world.now_ms)
        await gone.world.rows(f"UPDATE workers SET lease_until = 0 WHERE worker_id = {old.worker_id}")
        reap = gone.world.reap()
        while await reap.run_once(gone.world.now_ms):
            pass
        # Its tries are used up: a dead letter again, and retried.
        assert await gone.state(key) == (RunState.FAILED, 5, 1)
        assert (await gone.world.rows("SELECT reason FROM dead_letters")) == [(Reason.WORKER_LOST,)]
        assert await gone.retry(key) == 1
        worker, run = await gone.claimed(key, await gone.world.worker().join())
        await stale.end(old)
        assert await gone.state(key) == (RunState.RUNNING, 6, 0)
        await worker.end(run)
        await stale.end(old, 500)
        assert await gone.state(key) == (RunState.SUCCEEDED, 6, 1)

    retried(shard_dsn, body)


def test_p10_a_dead_workers_run_goes_back_while_it_has_tries_left(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        stale, old = await gone.claimed(key)
        await gone.world.rows(f"UPDATE workers SET lease_until = 0 WHERE worker_id = {old.worker_id}")
        reap = gone.world.reap()
        while await reap.run_once(gone.world.now_ms):
            pass
        assert await gone.state(key) == (RunState.WAITING, 5, 1)
        worker, run = await gone.claimed(key, await gone.world.worker().join())
        await stale.end(old)
        await worker.end(run)
        assert await gone.state(key) == (RunState.SUCCEEDED, 6, 2)

    retried(shard_dsn, body, retry=RetryPolicy(max_attempts=3))


def test_p7_cancel_reaches_it_waiting_and_running(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        cancel = cancel_run(gone.world.shard, *key)
        assert (await cancel).state == RunState.CANCELLED  # type: ignore[union-attr]
        assert await gone.state(key) == (RunState.CANCELLED, 5, 0)
        assert await gone.count("deferred") == 0
        other = await gone.died("other")
        await gone.world.rows(f"DELETE FROM runs WHERE job_id = {other.job_id}")
        assert await gone.retry(other) == 1
        worker, run = await gone.claimed(other)
        assert (await cancel_run(gone.world.shard, *other)).state == RunState.RUNNING  # type: ignore[union-attr]
        await worker.end(run, kind=OutcomeKind.CANCELLED)
        assert (await gone.state(other))[0] == RunState.CANCELLED

    retried(shard_dsn, body)


def test_p7_a_pause_holds_it_and_it_runs_after_the_resume(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        job = (await find_jobs(gone.world.shard, [(TENANT, "job")]))[TENANT, "job"]
        await pause_job(gone.world.shard, job, None, Windows())
        assert await gone.state(key) == (RunState.WAITING, 4, 0)
        assert await gone.world.rows("SELECT due_at FROM deferred") == [(HELD_UNTIL_MS,)]
        await resume_job(gone.world.shard, job, None, Windows())
        assert await gone.count("skips") == 0
        worker, run = await gone.claimed(key)
        await worker.end(run)
        assert await gone.state(key) == (RunState.SUCCEEDED, 5, 1)

    retried(shard_dsn, body)


def test_p7_a_delete_ends_it_on_record(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        job = (await find_jobs(gone.world.shard, [(TENANT, "job")]))[TENANT, "job"]
        await delete_job(gone.world.shard, job, Windows())
        assert (await gone.state(key))[0] == RunState.SKIPPED
        assert await gone.count("deferred") == 0

    retried(shard_dsn, body)


def test_one_of_a_job_that_must_not_overlap_takes_the_job_and_leaves_it(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        worker, run = await gone.claimed(key)
        assert await gone.world.rows("SELECT scheduled_at FROM active") == [(key[1],)]
        await worker.end(run, 500)
        assert await gone.count("active") == 0

    retried(shard_dsn, body, overlap=Overlap.SKIP)


def test_p3_a_functions_run_is_handed_to_a_worker_and_a_stale_one_changes_nothing(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        world = gone.world
        executor = await world.worker().join()
        await gone.on_time()
        await executor.claim.run_once(world.now_ms)
        door = Work(world.shard, new_door(), world.versions, lambda *_: True, world.clock, world.events, lambda: 0.5)
        lane = workers_lane(TENANT, "resize")

        async def claim() -> Claimed:
            candidates = await door.candidates([Class(lane, 2)], 10)
            (claimed,) = await door.claim([each.key for each in candidates], {(TENANT, "resize")})
            return claimed

        first = (await claim()).run
        assert (first.key, first.attempt) == (key, 5)
        lost = Fence(key, first.attempt, first.worker_id, TENANT)
        (ended,) = await door.settle([End(lost, Deed.FAIL, "broken")])
        assert isinstance(ended, WorkRow)
        assert await gone.state(key) == (RunState.FAILED, 5, 1)
        assert await gone.retry(key) == 1
        await gone.on_time()
        await executor.claim.run_once(world.now_ms)
        second = (await claim()).run
        (late,) = await door.settle([End(lost, Deed.COMPLETE)])
        assert isinstance(late, Stale)
        mine = Fence(key, second.attempt, second.worker_id, TENANT)
        (done,) = await door.settle([End(mine, Deed.COMPLETE, result=b"1")])
        assert isinstance(done, WorkRow)
        assert await gone.state(key) == (RunState.SUCCEEDED, 6, 1)

    retried(shard_dsn, body, target=FunctionTarget("resize"))


def test_what_was_counted_of_its_hour_stands(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        hour_ms = key[1] - key[1] % 3_600_000
        await gone.world.rows(f"UPDATE counted SET counted_to = {hour_ms + DAY_MS}, seen_to = {hour_ms + DAY_MS}")
        await gone.world.rows(
            "INSERT INTO tenant_hours (tenant_id, hour_at, partition_id, succeeded, failed, cancelled, skipped, called,"
            f" lag_sum_ms, lag_max_ms, duration_sum_ms, duration_max_ms) VALUES ({TENANT}, {hour_ms},"
            f" {key.partition_id}, 9, 1, 0, 0, 10, 0, 0, 0, 0)"
        )
        await gone.world.rows(f"INSERT INTO recounts VALUES ({key.partition_id}, {hour_ms}, 0, 1)")
        worker, run = await gone.claimed(key)
        await worker.end(run)
        await Rollup(gone.world.shard, gone.world.partitions, gone.world.clock, gone.world.events).run_once(0)
        assert await gone.world.rows("SELECT succeeded, failed FROM tenant_hours") == [(9, 1)]
        assert await gone.count("recounts") == 0

    retried(shard_dsn, body)


def test_the_sweep_of_old_dead_letters_meets_one_that_was_retried(shard_dsn: Dsn) -> None:
    async def body(gone: Gone) -> None:
        key, left = await gone.died(), await gone.died("left")
        await gone.drop()
        await gone.world.rows(f"UPDATE dead_letters SET died_at = {gone.world.now_ms - DEAD_LETTERS_KEPT_MS - 1}")
        assert await gone.retry(key) == 1
        tidy = Tidy(gone.world.shard, gone.world.partitions, gone.settings, gone.world.events)
        await tidy.run_once(gone.world.now_ms)
        assert await gone.retry(left) == await gone.count("dead_letters") == 0
        worker, run = await gone.claimed(key)
        await worker.end(run, 500)
        await tidy.run_once(gone.world.now_ms)
        assert await gone.count("dead_letters") == 1
        assert await gone.state(key) == (RunState.FAILED, 5, 1)

    gone_world(shard_dsn, body)


def test_an_ended_one_leaves_after_the_retention_and_an_open_one_stays(shard_dsn: Dsn) -> None:
    async def body(gone: Gone, key: RunKey) -> None:
        worker, run = await gone.claimed(key)
        tidy = Tidy(gone.world.shard, gone.world.partitions, gone.settings, gone.world.events)
        await worker.end(run, 500)
        long_ago_ms = gone.world.now_ms - (KEPT + 1) * DAY_MS
        await tidy.run_once(gone.world.now_ms)
        assert await gone.count("runs") == await gone.count("attempts") == 1
        await gone.world.rows(f"UPDATE runs SET finished_at = {long_ago_ms}")
        await tidy.run_once(gone.world.now_ms)
        assert await gone.count("runs") == await gone.count("attempts") == 0
        # The letter is the whole run, once more.
        assert await gone.retry(key) == 1
        await tidy.run_once(gone.world.now_ms)
        assert await gone.state(key) == (RunState.WAITING, 5, 0)

    retried(shard_dsn, body)
