"""Finished runs go to a real Cassandra first, and then their day leaves MySQL: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable

import pytest

from engine.clock import SystemClock
from engine.config import Dsn
from engine.contact import Contact
from engine.errors import HistoryUnavailable
from engine.local.cassandra import CassandraServer
from engine.model import Reason, RetryPolicy, RunAt, RunKey, RunState, partition_of
from engine.rows import FinishedRun, Report
from engine.stages import record_history
from engine.stages.days import DAY_MS
from engine.stages.record_history import LEASE_MS, OpenBelowFloorError
from engine.stages.tidy import Tidy
from engine.store.dead_letters import retry_dead_letters
from engine.store.statements import Name
from tests.support.cassandra import CONNECT_S, Past, run_past
from tests.support.world import PARTITIONS, TENANT

RUNS = 400
DURABLE_AFTER_MS = 11_500


class Killed(BaseException):
    """What a kill -9 is to a stage: nothing that comes after it happens."""


class Sink:
    """Cassandra, until it is told otherwise."""

    def __init__(self, past: Past) -> None:
        self._history = past.history
        self.runs = 0
        self.pieces: list[int] = []
        self.before_write: Callable[[], object] | None = None
        self.after_write: type[BaseException] | None = None
        self.away = False
        self.nodes_lost = 0

    @property
    def losses(self) -> int:
        return self.nodes_lost + self._history.losses

    async def write(self, runs: list[FinishedRun]) -> None:
        if self.before_write is not None:
            self.before_write()
        if self.away:
            raise HistoryUnavailable("away")
        self.pieces.append(len(runs))
        await self._history.write(runs)
        self.runs += len(runs)
        if self.after_write is not None:
            raise self.after_write


def recorder_of(
    past: Past, worker_id: int = 1, durable_after_ms: int = 0
) -> tuple[record_history.RecordHistory, Sink]:
    recorder, sink = past.recorder(worker_id, durable_after_ms), Sink(past)
    recorder._sink = sink
    return recorder, sink


async def noted(past: Past) -> int:
    """How many partitions MySQL knows to be recorded up to the floor."""
    rows = await past.world.rows("SELECT COUNT(*) FROM recorded, floor WHERE recorded_at >= floor_at")
    return int(rows[0][0])


def test_a_finished_run_is_recorded_whole_with_all_attempts_and_its_day_leaves_mysql(
    shard_dsn: Dsn, contact: Contact
) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        before = await past.in_mysql()
        assert len(before) == RUNS
        recorder = past.recorder()
        await past.turn(recorder)
        assert (await past.days())[0] == "d2"
        await past.turn(recorder)
        assert (await past.days())[0] == "d3"
        assert await past.in_mysql() == set()
        found = await past.in_cassandra()
        assert len(found) == RUNS
        assert set(found) == before
        run, attempts, report = await past.history.read_run(TENANT, [7, 1000], past.first_ms)
        assert report is None
        assert (run.state, run.status_code, run.attempt) == (RunState.SUCCEEDED, 200, 2)
        assert (run.started_at_ms, run.finished_at_ms) == (past.first_ms + 1, past.first_ms + 9)
        assert [(each.attempt, each.status_code, each.detail, each.answer) for each in attempts] == [
            (1, 500, "no", b"sorry")
        ]

    run_past(shard_dsn, contact, body)


def test_no_day_is_dropped_before_every_partition_is_recorded(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        recorder = past.recorder()
        await past.drop.run_once(past.world.now_ms)
        for _ in past.world.partitions[:-1]:
            assert await recorder.run_once(past.world.now_ms)
            await past.drop.run_once(past.world.now_ms)
            assert (await past.days())[0] == "d1"
        assert past.told("day.kept")[-1]["reason"] == "not recorded in Cassandra yet"
        await recorder.run_once(past.world.now_ms)
        await past.drop.run_once(past.world.now_ms)
        assert (await past.days())[0] == "d2"

    run_past(shard_dsn, contact, body)


@pytest.mark.parametrize("dies", ["between the write and the note of it", "between the note and the drop"])
def test_p2_a_recorder_killed_at_any_moment_loses_nothing_and_records_nothing_twice(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    monkeypatch.setattr(record_history, "RUNS_MAX", 20)

    async def body(past: Past) -> None:
        await past.fill(RUNS)
        before = await past.in_mysql()
        await past.drop.run_once(past.world.now_ms)
        if dies == "between the note and the drop":
            while await past.recorder().run_once(past.world.now_ms):
                pass
        else:
            recorder, sink = recorder_of(past)
            sink.after_write = Killed
            with pytest.raises(Killed):
                await recorder.run_once(past.world.now_ms)
            assert sink.runs == 20
            # Its lease stands: another host's recorder has to wait for it, on that partition.
            other = past.recorder(2)
            while await other.run_once(past.world.now_ms):
                pass
            await past.drop.run_once(past.world.now_ms)
            assert (await past.days())[0] == "d1"
            await past.world.rows(f"UPDATE recorded SET lease_until = lease_until - {LEASE_MS}")
        another = past.recorder(3)
        await past.turn(another)
        await past.turn(another)
        assert (await past.days())[0] == "d3"
        found = await past.in_cassandra()
        assert len(found) == len(set(found)) == RUNS
        assert set(found) == before

    run_past(shard_dsn, contact, body)


def test_p10_cassandra_away_for_an_hour_holds_up_nothing_and_is_caught_up_with(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_history, "RUNS_MAX", 50)

    async def body(past: Past) -> None:
        await past.fill(RUNS)
        recorder, sink = recorder_of(past)
        sink.away = True
        for _ in range(60):
            past.world.clock.advance(60_000)
            await past.drop.run_once(past.world.now_ms)
            assert not await recorder.run_once(past.world.now_ms)
        assert (await past.days())[0] == "d1"
        assert len(await past.in_mysql()) == RUNS
        assert len(past.told("history.unavailable")) == 60
        waiting = past.told("record.backlog")[-1]
        assert waiting["age_ms"] > 0
        sink.away = False
        await past.turn(recorder)
        await past.turn(recorder)
        assert (await past.days())[0] == "d3"
        assert len(await past.in_cassandra()) == sink.runs == RUNS
        assert max(sink.pieces) <= 50

    run_past(shard_dsn, contact, body)


def test_p2_what_is_acknowledged_is_noted_once_it_outlives_its_node(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        recorder, _ = recorder_of(past, durable_after_ms=DURABLE_AFTER_MS)
        await past.turn(recorder)
        assert len(await past.in_cassandra()) == RUNS // 2
        assert await noted(past) == 0
        past.world.clock.advance(DURABLE_AFTER_MS - 1)
        await past.turn(recorder)
        assert await noted(past) == 0
        past.world.clock.advance(1)
        await past.turn(recorder)
        assert await noted(past) == len(past.world.partitions)
        assert (await past.days())[0] == "d2"

    run_past(shard_dsn, contact, body)


@pytest.mark.parametrize("repeated", [1, 3])
def test_p2_what_a_lost_node_may_have_lost_is_written_again_before_it_is_noted(
    shard_dsn: Dsn, contact: Contact, repeated: int
) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        recorder, sink = recorder_of(past, durable_after_ms=DURABLE_AFTER_MS)
        await past.turn(recorder)
        for number in range(1, repeated + 1):
            sink.nodes_lost += 1
            past.world.clock.advance(2 * DURABLE_AFTER_MS)
            await past.turn(recorder)
            assert await noted(past) == 0
            assert sink.runs == RUNS // 2 * (number + 1)
        past.world.clock.advance(DURABLE_AFTER_MS)
        await past.turn(recorder)
        assert await noted(past) == len(past.world.partitions)
        assert len(await past.in_cassandra()) == RUNS // 2

    run_past(shard_dsn, contact, body)


def test_p10_a_node_killed_under_load_comes_back_and_everything_recorded_is_there(
    shard_dsn: Dsn, cassandra_node: CassandraServer, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within the second in which its commit log is not on disk yet."""
    monkeypatch.setattr(record_history, "RUNS_MAX", 20)

    async def body(past: Past) -> None:
        await past.fill(RUNS)
        before = await past.in_mysql()
        recorder, sink = recorder_of(past, durable_after_ms=2_000)
        past.world.clock = SystemClock()
        recorder._clock = past.world.clock
        sink.before_write = lambda: sink.runs == RUNS // 4 and os.kill(cassandra_node.pid, signal.SIGKILL)
        await past.drop.run_once(past.world.now_ms)
        while not past.told("history.unavailable"):
            await recorder.run_once(past.world.now_ms)
        sink.before_write = None
        await asyncio.to_thread(cassandra_node._running().wait)
        cassandra_node.stop()
        cassandra_node.launch()
        await asyncio.to_thread(cassandra_node.wait_ready)
        async with asyncio.timeout(CONNECT_S):
            while (await past.days())[0] == "d1":
                await recorder.run_once(past.world.now_ms)
                await past.drop.run_once(past.world.now_ms)
        assert {row for row in before if row[1] < past.first_ms + DAY_MS} == set(await past.in_cassandra())
        assert past.told("record.repeated")

    run_past(shard_dsn, contact, body)


def test_a_day_with_an_open_run_is_not_recorded_before_that_has_ended(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        await past.world.rows(
            "INSERT INTO deferred (partition_id, scheduled_at, job_id, due_at, reason, priority)"
            f" VALUES (1, {past.first_ms + 5}, 1000, {past.world.now_ms}, 1, 2)"
        )
        recorder, sink = recorder_of(past)
        await past.turn(recorder)
        assert sink.runs == 0
        await past.world.rows("DELETE FROM deferred")
        await past.turn(recorder)
        assert sink.runs == RUNS // 2

    run_past(shard_dsn, contact, body)


def test_an_open_run_below_the_floor_would_be_a_mistake_and_stops_the_recorder(
    shard_dsn: Dsn, contact: Contact
) -> None:
    async def body(past: Past) -> None:
        await past.fill(1, state=RunState.RUNNING)
        await past.drop.run_once(past.world.now_ms)
        with pytest.raises(OpenBelowFloorError):
            await past.recorder().run_once(past.world.now_ms)

    run_past(shard_dsn, contact, body)


def test_withdrawn_runs_never_were(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(10, state=RunState.WITHDRAWN)
        await past.turn(past.recorder())
        assert (await past.days())[0] == "d2"
        assert await past.in_cassandra() == []

    run_past(shard_dsn, contact, body)


def test_a_stale_recorder_moves_no_partition_that_another_has_taken_over(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(RUNS)
        await past.drop.run_once(past.world.now_ms)
        slow, sink = recorder_of(past)
        reached, go_on = asyncio.Event(), asyncio.Event()
        write = sink.write

        async def held_up(runs: list[FinishedRun]) -> None:
            await write(runs)
            reached.set()
            await go_on.wait()

        sink.write = held_up
        task = asyncio.create_task(slow.run_once(past.world.now_ms))
        await reached.wait()
        await past.world.rows("UPDATE recorded SET lease_until = 0")
        while await past.recorder(2).run_once(past.world.now_ms):
            pass
        done = await past.world.rows("SELECT partition_id, recorded_at, worker_id FROM recorded ORDER BY partition_id")
        go_on.set()
        await task
        again = await past.world.rows("SELECT partition_id, recorded_at, worker_id FROM recorded ORDER BY partition_id")
        assert again == done

    run_past(shard_dsn, contact, body)


def test_a_piece_is_bounded_by_its_attempts_too_and_none_is_left_out(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_history, "ATTEMPTS_MAX", 3)

    async def body(past: Past) -> None:
        await past.fill(RUNS)
        recorder, sink = recorder_of(past)
        await past.turn(recorder)
        assert len(sink.pieces) >= 12  # four of eight partitions have five attempts each
        for n in range(0, RUNS // 2, 10):
            at_ms = past.first_ms + n * (2 * 86_400_000 // RUNS) // 1000 * 1000
            found = await past.history.read_run(TENANT, [1000 + n % 5], at_ms)
            assert found is not None
            assert [each.attempt for each in found.attempts] == [1]

    run_past(shard_dsn, contact, body)


def test_what_a_function_s_worker_said_is_recorded_with_its_run(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_history, "REPORTS_MAX", 2)

    async def body(past: Past) -> None:
        await past.fill(RUNS)
        key = "partition_id, scheduled_at, job_id"
        told = await past.world.rows(f"SELECT {key} FROM runs ORDER BY scheduled_at LIMIT 50")
        rows = ", ".join(f"({', '.join(map(str, key))}, 1, 0, 100, 'half', '[{key[1]}]')" for key in told)
        await past.world.rows(f"INSERT INTO reports VALUES {rows}")
        await past.turn(past.recorder())
        assert await past.world.rows("SELECT COUNT(*) FROM reports") == [(0,)]
        for _, at_ms, job_id in told:
            found = await past.history.read_run(TENANT, [job_id], at_ms)
            assert found.report == Report(1, 100, "half", b"[%d]" % at_ms)

    run_past(shard_dsn, contact, body)


def test_of_two_writes_of_a_run_the_later_end_wins_whichever_comes_last(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(10)
        await past.turn(past.recorder())
        run, attempts, _ = await past.history.read_run(TENANT, [1000], past.first_ms)
        older = run._replace(attempt=1, state=int(RunState.FAILED), finished_at_ms=past.first_ms + 8)
        newer = run._replace(attempt=2, state=int(RunState.CANCELLED))
        for row in (newer, older, run):
            await past.history.write([FinishedRun(TENANT, 2, row, attempts)])
        assert (await past.history.read_run(TENANT, [1000], past.first_ms)).run == newer

    run_past(shard_dsn, contact, body)


def test_p2_a_dead_letter_that_is_retried_once_its_day_has_gone_is_written_over_what_was_recorded(
    shard_dsn: Dsn, contact: Contact
) -> None:
    async def body(past: Past) -> None:
        world = past.world
        job_id = await world.job("job", RunAt(past.first_ms), retry=RetryPolicy(max_attempts=1))
        await world.rows(f"UPDATE jobs SET next_run_at = NULL, last_run_at = {past.first_ms}")
        key = RunKey(partition_of(TENANT, "job", PARTITIONS), past.first_ms, job_id)
        place = ", ".join(map(str, key))
        times = f"{past.first_ms + 1}, {past.first_ms + 9}"
        await world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            " attempt, tries, reason, outcome, status_code, started_at, finished_at)"
            f" VALUES ({place}, {TENANT}, 1, 5, 2, 1, 1, 1, {int(Reason.WORKER_LOST)}, 1, 500, {times})"
        )
        await world.rows(f"INSERT INTO attempts VALUES ({place}, 1, 7, 1, 500, {times}, 'no', 'sorry')")
        async with world.shard.transaction() as connection:
            bounds = {"from_at": past.first_ms, "to_at": past.first_ms, "now_ms": past.first_ms + 9}
            await connection.execute_rows("insert_dead_letters", [key], bounds, bytes_max=1 << 20)
        recorder = past.recorder()
        await past.turn(recorder)
        assert (await past.days())[0] == "d2"
        assert (await past.history.read_run(TENANT, [job_id], past.first_ms)).run.state == RunState.FAILED
        worker = await world.worker().join()
        for attempt, status, state in ((2, 502, RunState.FAILED), (3, 200, RunState.SUCCEEDED)):
            assert await retry_dead_letters(world.shard, TENANT, [key]) == 1
            await recorder.run_once(world.now_ms)
            assert await world.rows("SELECT attempt, tries FROM runs") == [(attempt - 1, 0)]
            world.clock.wall_ms = await world.shard.now_ms()
            await worker.claim.run_once(world.now_ms)
            (run,) = worker.runs()
            await worker.end(run, status)
            tidy = Tidy(world.shard, world.partitions, past.settings, world.events)
            await tidy.run_once(world.now_ms)
            assert await world.rows("SELECT COUNT(*) FROM runs") == [(1,)]
            for _ in range(2):
                await recorder.run_once(world.now_ms)
            assert past.told("run.recorded")[-1]["runs"] == 1
            await tidy.run_once(world.now_ms)
            assert await world.rows("SELECT COUNT(*) FROM runs") == [(0,)]
            found = await past.history.read_run(TENANT, [job_id], past.first_ms)
            assert (found.run.state, found.run.status_code, found.run.reason) == (state, status, None)
            assert (found.run.attempt, found.run.tries) == (attempt, 1)
            assert [each.status_code for each in found.attempts] == [500, 502]
        await past.turn(recorder)
        assert (await past.days())[0] == "d3"
        assert len(await past.in_cassandra(job_id, 1)) == 1

    run_past(shard_dsn, contact, body)


def test_p3_what_is_retried_while_it_is_recorded_again_stays_in_mysql(shard_dsn: Dsn, contact: Contact) -> None:
    async def body(past: Past) -> None:
        await past.fill(1)
        await past.world.rows(f"UPDATE floor SET gone_to = {past.first_ms + 1}")
        recorder, sink = recorder_of(past)
        write = past.history.write_again

        async def retried_meanwhile(runs: list[FinishedRun]) -> None:
            await write(runs)
            await past.world.rows("UPDATE runs SET state = 3, tries = 0, attempt = attempt + 1")

        sink.write_again = retried_meanwhile  # type: ignore[attr-defined]
        await recorder.run_once(past.world.now_ms)
        assert await past.world.rows("SELECT state, attempt FROM runs") == [(RunState.WAITING, 3)]
        assert len(await past.in_cassandra()) == 1

    run_past(shard_dsn, contact, body)


def test_only_what_is_recorded_may_be_dropped_by_name(shard_dsn: Dsn, contact: Contact) -> None:
    """The gate is the drop's own: no recorder has to be there for it."""

    async def body(past: Past) -> None:
        await past.fill(10)
        for _ in range(5):
            await past.drop.run_once(past.world.now_ms)
        assert (await past.days())[0] == Name("d1")
        settings = dataclasses.replace(past.settings, history="mysql", retention_days=2)
        past.drop._settings = settings
        await past.drop.run_once(past.world.now_ms)
        assert (await past.days())[0] == "d2"

    run_past(shard_dsn, contact, body)
