"""Signals on a real shard: what its holder makes of a run whose job was paused or deleted, or that was cancelled."""

from __future__ import annotations

import pytest

import engine.stages.signals
from engine.config import Dsn
from engine.errors import StoreUnavailable
from engine.model import OutcomeKind, RunAt, RunState
from engine.outbound.exchange import Outcome
from engine.stages.held import HeldRun
from engine.stages.signals import Signals
from engine.store.changes import Windows, cancel_run, delete_job, pause_job
from engine.store.jobs import find_jobs
from tests.support.world import TENANT, Worker, World, run_world


class StubFire:
    """Firing as signals see it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def abandon(self, run: HeldRun) -> None:
        self._worker.held.remove(run)

    def cancel(self, run: HeldRun) -> None:
        now_ms = self._worker.world.now_ms
        cancelled = Outcome(OutcomeKind.CANCELLED, None, None, b"", now_ms, now_ms, False, "", "")
        self._worker.settle.settled(run, cancelled)


async def held_now(world: World) -> tuple[Worker, HeldRun, Signals]:
    """A worker that holds a run which is due, and its signals."""
    await world.job("now", RunAt(world.second(0)), next_run_at_ms=world.second(0))
    worker = await world.worker().join()
    await world.rows("UPDATE marks SET mark_at = mark_at - 10000")
    await worker.plan_all()
    return worker, worker.runs()[0], Signals(world.shard, worker.lease, worker.held, StubFire(worker))  # type: ignore[arg-type]


async def change(world: World, verb: str, run: HeldRun) -> None:
    job = (await find_jobs(world.shard, [(TENANT, "now")]))[TENANT, "now"]
    if verb == "pause":
        await pause_job(world.shard, job, None, Windows())
    elif verb == "delete":
        await delete_job(world.shard, job, Windows())
    else:
        await cancel_run(world.shard, *run.key)
    assert await world.rows("SELECT COUNT(*) FROM signals") == [(1,)]


@pytest.mark.parametrize("verb", ["pause", "delete", "cancel"])
def test_p3_a_run_that_was_called_stands_though_how_it_ended_is_not_written_yet(shard_dsn: Dsn, verb: str) -> None:
    async def body(world: World) -> None:
        worker, run, signals = await held_now(world)
        now_ms = world.now_ms
        worker.settle.settled(run, Outcome(OutcomeKind.ANSWERED, 200, None, b"", now_ms, now_ms, True, "", ""))
        await change(world, verb, run)
        await signals.run_once(world.now_ms)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, tries FROM runs") == [(RunState.SUCCEEDED, 1)]
        assert await world.rows("SELECT * FROM signals") == []

    run_world(shard_dsn, body)


@pytest.mark.parametrize(
    ("verb", "state"),
    [("pause", RunState.WITHDRAWN), ("delete", RunState.SKIPPED), ("cancel", RunState.CANCELLED)],
)
def test_p7_a_run_that_was_not_called_goes_where_the_change_wants_it(
    shard_dsn: Dsn, verb: str, state: RunState
) -> None:
    async def body(world: World) -> None:
        worker, run, signals = await held_now(world)
        await change(world, verb, run)
        await signals.run_once(world.now_ms)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, tries FROM runs") == [(state, 0)]
        assert await world.rows("SELECT * FROM signals") == []

    run_world(shard_dsn, body)


@pytest.mark.parametrize(
    ("started_after_ms", "bytes_sent", "has_start"), [(-1, False, False), (-1, True, True), (0, False, True)]
)
def test_p4_a_run_cancelled_before_its_second_has_no_start_and_one_that_was_called_early_keeps_it(
    shard_dsn: Dsn, started_after_ms: int, bytes_sent: bool, has_start: bool
) -> None:
    async def body(world: World) -> None:
        worker, run, _ = await held_now(world)
        at_ms = run.key.scheduled_at_ms + started_after_ms
        outcome = Outcome(OutcomeKind.CANCELLED, None, None, b"", at_ms, at_ms, bytes_sent, "", "")
        worker.settle.settled(run, outcome)
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state, started_at IS NOT NULL FROM runs") == [(RunState.CANCELLED, has_start)]

    run_world(shard_dsn, body)


def test_p2_a_run_that_could_not_be_taken_back_at_first_is_taken_back_later(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        worker, run, signals = await held_now(world)
        await change(world, "pause", run)
        with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
            broken.setattr(engine.stages.signals, "take_back", away)
            await signals.run_once(world.now_ms)
        await signals.run_once(world.now_ms)
        assert await world.states() == [(run.key.scheduled_at_ms, RunState.WITHDRAWN)]
        assert worker.runs() == []

    run_world(shard_dsn, body)


async def away(*_: object) -> None:
    raise StoreUnavailable("away")


def test_p7_a_signal_for_a_run_that_is_not_held_yet_is_remembered(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run, signals = await held_now(world)
        worker.held.remove(run)  # as before the answer to the COMMIT of its plan
        await change(world, "pause", run)
        await signals.run_once(world.now_ms)
        assert worker.held.was_foretold(run)

    run_world(shard_dsn, body)


def test_a_run_is_decided_once(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        worker, run, _ = await held_now(world)
        now_ms = world.now_ms
        worker.settle.settled(run, Outcome(OutcomeKind.ANSWERED, 200, None, b"", now_ms, now_ms, True, "", ""))
        worker.settle.given_back(run)
        assert len(worker.settle) == 1
        assert worker.runs() == []
        await worker.settle.run_once(world.now_ms)
        assert await world.rows("SELECT state FROM runs") == [(RunState.SUCCEEDED,)]

    run_world(shard_dsn, body)
