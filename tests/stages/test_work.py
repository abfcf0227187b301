"""Function runs from their second to their end: claimed by doors, leased, settled, and taken back."""

from __future__ import annotations

import pytest

from engine.config import Dsn
from engine.errors import CommitUnknown
from engine.model import Cron, FunctionTarget, OutcomeKind, Overlap, Priority, RetryPolicy, RunAt, RunState
from engine.rules.lanes import WORKERS_LANES_FROM, held_lane, workers_lane
from engine.rules.work import CANCEL_GRACE_MS, HEARTBEAT_MS, LEASE_MS, Deed, Stop
from engine.stages.door import Asked, Door
from engine.stages.lapse import LapsedWork
from engine.stages.work import Beat, Claimed, Class, Renewed, Stale, Work, new_door, report_of
from engine.stages.work_ends import End, fence_of
from engine.store.changes import Windows, cancel_run, pause_job
from engine.store.connection import Connection
from engine.store.jobs import find_jobs
from tests.support.world import TENANT, Worker, World, run_world

FUNCTION = "report"
TARGET = FunctionTarget(FUNCTION, {"day": 1})
WANTED = {(TENANT, FUNCTION)}
HOUR_MS = 3_600_000


class Bench:
    """One door, its worker's view, and the keeper's part, on a world's shard."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.work = Work(world.shard, new_door(), world.versions, told, world.clock, world.events, lambda: 0.0)
        self.door = Door(self.work, Asked(), lambda: (0, []), world.clock)
        self.lapse = LapsedWork(
            world.shard, world.partitions, world.versions, told, world.clock, world.events, lambda: 0.0
        )

    async def claim(self, rows_max: int = 100) -> list[Claimed]:
        lanes = [Class(workers_lane(TENANT, FUNCTION), priority) for priority in Priority]
        found = await self.work.candidates(lanes, rows_max)
        return await self.work.claim([each.key for each in found], WANTED) if found else []

    async def beat(self, claimed: Claimed, progress: int | None = None) -> Renewed | Stale:
        (answer,) = await self.work.renew([Beat(fence_of(claimed.run), progress, None)])
        assert isinstance(answer, Renewed | Stale)
        return answer

    async def end(self, claimed: Claimed, deed: Deed, **said: object):
        (answer,) = await self.work.settle([End(fence_of(claimed.run), deed, **said)])
        return answer

    async def open_for(self, ms: int, step_ms: int = 2_000) -> None:
        """Time passes, with the door open and nothing else."""
        for _ in range(0, ms, step_ms):
            await self.door.run_once(self.world.now_ms)
            self.world.clock.advance(step_ms)
        await self.door.run_once(self.world.now_ms)

    async def lapses(self) -> None:
        await self.lapse.run_once(self.world.now_ms)


def told(tenant_id: int, definition: object) -> bool:
    return True


async def planned(world: World, **settings: object) -> Worker:
    """A run of a function is planned, due in five seconds; returns who owns its partition."""
    await world.job("job", RunAt(world.second(5)), **({"target": TARGET} | settings))
    worker = await world.worker().join()
    await worker.plan_all()
    return worker


async def begun(world: World, **settings: object) -> tuple[Bench, Claimed]:
    """A run in a worker's hands."""
    bench = Bench(world)
    await planned(world, **settings)
    world.clock.advance(5_000)
    await bench.open_for(20_000)
    (claimed,) = await bench.claim()
    return bench, claimed


async def state_of(world: World) -> tuple[RunState, int, int | None]:
    """State, tries and outcome of the only run."""
    ((state, tries, outcome),) = await world.rows("SELECT state, tries, outcome FROM runs")
    return RunState(state), tries, outcome


def test_p4_a_function_run_is_nobodys_before_its_second_and_its_workers_from_then_on(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, worker = Bench(world), await planned(world)
        ((lane, due_at),) = await world.rows("SELECT lane, due_at FROM deferred")
        assert lane >= WORKERS_LANES_FROM
        assert await bench.claim() == []
        world.clock.advance(due_at - world.now_ms)
        await worker.claim.run_once(world.now_ms)
        assert worker.runs() == []
        (claimed,) = await bench.claim()
        assert (claimed.name, claimed.run.attempt, claimed.run.tries) == ("job", 1, 0)
        assert await bench.claim() == []

    run_world(shard_dsn, body)


def test_a_run_of_six_hours_lasts_as_long_as_its_worker_is_heard(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, timeout_ms=6 * HOUR_MS)
        end_ms = world.now_ms + 6 * HOUR_MS - 25 * 60_000
        while world.now_ms < end_ms:
            # With one heartbeat in twenty minutes: nobody looks for silent workers meanwhile.
            world.clock.advance(20 * 60_000 - 2 * HEARTBEAT_MS)
            assert isinstance(await bench.beat(claimed), Renewed)
            await bench.open_for(2 * HEARTBEAT_MS)
            await bench.lapses()
        await bench.lapses()
        done = await bench.end(claimed, Deed.COMPLETE, result=b'{"pages":3}')
        assert done.state == RunState.SUCCEEDED
        report = await report_of(world.shard, *claimed.run.key)
        assert report is not None
        assert report.result == b'{"pages":3}'

    run_world(shard_dsn, body)


def test_three_missed_heartbeats_give_a_run_to_another_worker_and_the_first_is_refused(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        await bench.open_for(LEASE_MS - 2_000)
        await bench.lapses()
        assert (await state_of(world))[0] == RunState.RUNNING
        await bench.open_for(4_000)
        await bench.lapses()
        assert await state_of(world) == (RunState.WAITING, 1, OutcomeKind.WORKER_LOST)
        (second,) = await bench.claim()
        assert second.run.attempt == claimed.run.attempt + 1
        # An hour later the first one wakes up.
        world.clock.advance(HOUR_MS)
        assert isinstance(await bench.beat(claimed), Stale)
        before = await world.rows("SELECT * FROM runs")
        for deed in Deed:
            assert isinstance(await bench.end(claimed, deed), Stale)
        assert await world.rows("SELECT * FROM runs") == before

    run_world(shard_dsn, body)


def test_p10_a_worker_paused_for_an_hour_wakes_up_and_is_refused(shard_dsn: Dsn) -> None:
    """Whatever it says then; and what another has made of the run meanwhile stands."""

    async def body(world: World) -> None:
        bench, paused = await begun(world)
        await bench.open_for(60_000)
        await bench.lapses()
        (other,) = await bench.claim()
        assert not isinstance(await bench.end(other, Deed.COMPLETE, result=b"2"), Stale)
        await bench.open_for(HOUR_MS - 60_000, step_ms=5_000)
        before = await world.rows("SELECT * FROM runs")
        assert isinstance(await bench.beat(paused, 99), Stale)
        for deed in Deed:
            assert isinstance(await bench.end(paused, deed, error="x"), Stale)
        assert await world.rows("SELECT * FROM runs") == before
        assert (await world.rows("SELECT result FROM reports")) == [(b"2",)]

    run_world(shard_dsn, body)


def test_what_a_worker_has_is_in_nobodys_way_and_goes_back_to_the_lane_of_its_function(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        (held,) = await world.rows("SELECT lane FROM deferred")
        assert held == (held_lane(claimed.run.key.partition_id),)
        await bench.open_for(LEASE_MS + 2_000)
        # Its lease is over: no executor is woken for it.
        values = {"partitions": world.partitions, "due_at": world.now_ms}
        assert (await world.shard.execute("any_due_deferred", values)).rows == ()
        await bench.lapses()
        assert await world.rows("SELECT lane FROM deferred") == [(workers_lane(TENANT, FUNCTION),)]

    run_world(shard_dsn, body)


def test_p10_after_an_outage_nobody_is_taken_for_silent_until_he_could_be_heard_for_a_lease(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, timeout_ms=HOUR_MS)
        world.clock.advance(40_000)  # MySQL, or the API, is away: no door shows itself
        await bench.lapses()
        await bench.open_for(LEASE_MS - 2_000)
        await bench.lapses()
        assert isinstance(await bench.beat(claimed), Renewed)
        await bench.open_for(4_000)
        await bench.lapses()
        assert (await state_of(world))[0] == RunState.RUNNING

    run_world(shard_dsn, body)


def test_a_cancelled_run_ends_whatever_its_worker_does(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, timeout_ms=HOUR_MS)
        await cancel_run(world.shard, *claimed.run.key)
        # The shard's own time is real: the lease ends by it.
        answer = await bench.beat(claimed)
        assert isinstance(answer, Renewed)
        assert answer.stop is Stop.CANCELLED
        await bench.open_for(CANCEL_GRACE_MS + 2_000)
        await bench.lapses()
        assert await state_of(world) == (RunState.CANCELLED, 0, OutcomeKind.CANCELLED)
        assert await world.rows("SELECT * FROM deferred") == []
        assert await world.rows("SELECT * FROM signals") == []

    run_world(shard_dsn, body)


def test_a_worker_that_completes_a_cancelled_run_ends_it_as_cancelled(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        await cancel_run(world.shard, *claimed.run.key)
        done = await bench.end(claimed, Deed.COMPLETE)
        assert done.state == RunState.CANCELLED

    run_world(shard_dsn, body)


def test_the_end_of_its_time_fails_a_try_also_of_a_worker_that_is_heard(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, timeout_ms=10_000, retry=RetryPolicy(max_attempts=1))
        world.clock.advance(9_000)
        answer = await bench.beat(claimed)
        assert isinstance(answer, Renewed)
        assert answer.lease_until_ms == world.now_ms + 1_000
        world.clock.advance(1_000)
        answer = await bench.beat(claimed)
        assert isinstance(answer, Renewed)
        assert answer.stop is Stop.DEADLINE
        await bench.lapses()
        assert await state_of(world) == (RunState.FAILED, 1, OutcomeKind.TIMEOUT)
        assert len(await world.rows("SELECT * FROM dead_letters")) == 1
        assert len(await world.rows("SELECT * FROM notices")) == 1

    run_world(shard_dsn, body)


def test_a_failure_is_tried_again_by_the_jobs_policy_and_ends_as_a_dead_letter(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, retry=RetryPolicy(max_attempts=2, backoff_ms=1))
        failed = await bench.end(claimed, Deed.FAIL, error="no source", retry_after="30")
        assert (failed.state, failed.tries) == (RunState.WAITING, 1)
        assert await bench.claim() == []
        world.clock.advance(30_000)
        (again,) = await bench.claim()
        assert (again.run.attempt, again.run.tries) == (2, 1)
        assert (await bench.end(again, Deed.FAIL, error="no source")).state == RunState.FAILED
        ((detail, answer),) = await world.rows("SELECT detail, answer FROM attempts WHERE attempt = 2")
        assert (detail, bytes(answer)) == ("no source", b"no source")
        assert len(await world.rows("SELECT * FROM dead_letters")) == 1

    run_world(shard_dsn, body)


def test_what_cannot_be_bettered_by_another_try_gets_none(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        assert (await bench.end(claimed, Deed.FAIL_FOR_GOOD, error="bad payload")).state == RunState.FAILED

    run_world(shard_dsn, body)


def test_a_run_given_back_before_it_began_costs_no_try_and_after_that_one(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        assert (await bench.end(claimed, Deed.UNSTARTED)).tries == 0
        (again,) = await bench.claim()
        assert (again.run.attempt, again.run.tries) == (2, 0)
        assert (await bench.end(again, Deed.RELEASE)).tries == 1
        (third,) = await bench.claim()
        assert (third.run.attempt, third.run.tries) == (3, 1)

    run_world(shard_dsn, body)


def test_an_end_said_again_is_answered_as_before(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        first = await bench.end(claimed, Deed.COMPLETE)
        before = await world.rows("SELECT * FROM runs")
        assert await bench.end(claimed, Deed.COMPLETE) == first
        assert isinstance(await bench.end(claimed, Deed.FAIL), Stale)
        assert await world.rows("SELECT * FROM runs") == before

    run_world(shard_dsn, body)


def test_p3_of_completions_told_together_those_that_are_cancelled_or_stale_end_as_that(shard_dsn: Dsn) -> None:
    """What a door remembers of its runs is worth nothing against what stands in their rows."""

    async def body(world: World) -> None:
        bench, worker = Bench(world), await world.worker().join()
        for name in ("good", "cancelled", "lost"):
            await world.job(name, RunAt(world.second(5)), target=TARGET)
        await worker.plan_all()
        world.clock.advance(6_000)
        claimed = {each.name: each.run for each in await bench.claim()}
        await cancel_run(world.shard, *claimed["cancelled"].key)
        await world.rows(f"UPDATE runs SET attempt = 2 WHERE job_id = {claimed['lost'].key.job_id}")
        ends = [End(fence_of(run), Deed.COMPLETE, result=b"1") for run in claimed.values()]
        said = dict(zip(claimed, await bench.work.settle(ends), strict=True))
        assert isinstance(said["lost"], Stale)
        assert (said["good"].state, said["cancelled"].state) == (RunState.SUCCEEDED, RunState.CANCELLED)
        assert [row[0] for row in await world.rows("SELECT job_id FROM reports")] == [claimed["good"].key.job_id]
        assert len(await world.rows("SELECT * FROM deferred")) == 1
        again = dict(zip(claimed, await bench.work.settle(ends), strict=True))
        assert [isinstance(again[name], Stale) for name in claimed] == [name == "lost" for name in claimed]

    run_world(shard_dsn, body)


def test_p9_a_token_is_worth_nothing_in_the_name_of_another_tenant(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        others = fence_of(claimed.run)._replace(tenant_id=TENANT + 1)
        before = await world.rows("SELECT * FROM deferred")
        (beat,) = await bench.work.renew([Beat(others, 40, "mine")])
        ends = [End(others, deed) for deed in Deed]
        answers = [beat, *await bench.work.settle(ends)]
        assert all(isinstance(answer, Stale) for answer in answers)
        assert await world.rows("SELECT * FROM deferred") == before
        assert (await state_of(world))[0] == RunState.RUNNING
        done = await bench.end(claimed, Deed.COMPLETE)
        assert not isinstance(done, Stale)
        (again,) = await bench.work.settle([End(others, Deed.COMPLETE)])
        assert isinstance(again, Stale)

    run_world(shard_dsn, body)


def test_progress_is_of_the_attempt_that_told_it(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world)
        await bench.beat(claimed, progress=40)
        await bench.beat(claimed)
        report = await report_of(world.shard, *claimed.run.key)
        assert report is not None
        assert (report.attempt, report.progress) == (1, 40)
        await bench.end(claimed, Deed.UNSTARTED)
        (again,) = await bench.claim()
        await bench.work.renew([Beat(fence_of(again.run), None, "begins")])
        report = await report_of(world.shard, *claimed.run.key)
        assert report is not None
        assert (report.attempt, report.progress, report.note) == (2, None, "begins")

    run_world(shard_dsn, body)


def test_a_paused_job_hands_out_nothing_and_what_runs_goes_on(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, claimed = await begun(world, retry=RetryPolicy(backoff_ms=1))
        (job,) = (await find_jobs(world.shard, {(TENANT, "job")})).values()
        await pause_job(world.shard, job, None, Windows())
        assert isinstance(await bench.beat(claimed), Renewed)
        await bench.end(claimed, Deed.FAIL, error="x")
        world.clock.advance(60_000)
        assert await bench.claim() == []
        assert (await state_of(world))[0] == RunState.WAITING

    run_world(shard_dsn, body)


def test_runs_that_must_not_overlap_are_let_in_one_by_one(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench, worker = Bench(world), await world.worker().join()
        await world.job("tick", Cron("* * * * * *"), target=TARGET, overlap=Overlap.SKIP)
        world.clock.advance(2_000)
        await worker.plan_all()
        await worker.claim.run_once(world.now_ms)
        assert len(await bench.claim()) == 1
        states = [state for at_ms, state in await world.states() if at_ms <= world.now_ms]
        assert RunState.SKIPPED in states
        assert states.count(RunState.RUNNING) == 1

    run_world(shard_dsn, body)


def test_a_claim_whose_commit_is_unknown_goes_back_without_a_try(shard_dsn: Dsn, monkeypatch) -> None:
    async def body(world: World) -> None:
        bench = Bench(world)
        await planned(world)
        world.clock.advance(6_000)
        commit = Connection.commit

        async def lost(connection: Connection) -> None:
            await commit(connection)
            raise CommitUnknown("no answer")

        monkeypatch.setattr(Connection, "commit", lost)
        with pytest.raises(CommitUnknown):
            await bench.claim()
        monkeypatch.setattr(Connection, "commit", commit)
        assert (await state_of(world))[0] == RunState.RUNNING
        await bench.work.give_back_unknown()
        (claimed,) = await bench.claim()
        assert (claimed.run.attempt, claimed.run.tries) == (2, 0)

    run_world(shard_dsn, body)


def test_another_tenants_function_of_the_same_name_is_not_handed_out(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        bench = Bench(world)
        await planned(world)
        world.clock.advance(6_000)
        found = await bench.work.candidates([Class(workers_lane(TENANT, FUNCTION), Priority.NORMAL)], 10)
        assert await bench.work.claim([each.key for each in found], {(TENANT + 1, FUNCTION)}) == []
        assert len(await bench.claim()) == 1

    run_world(shard_dsn, body)
