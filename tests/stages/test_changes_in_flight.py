"""Every change of a job meets its runs planned, claimed, in flight, between retries and finished, and life goes on.

One job in each phase; after the change each run goes its way to the end: signals are obeyed, calls in flight are
answered, retries and what is planned again are claimed and called. What each has become, and how often it was called
since, stands in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from engine.config import Dsn
from engine.model import Definition, Overlap, RunAt, RunKey, RunState, Trigger, partition_of
from engine.stages.held import HeldRun
from engine.stages.signals import Signals
from engine.store.changes import Windows, cancel_run, delete_job, pause_job, resume_job, start_run
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from tests.stages.test_signals import StubFire
from tests.support.changes import edited
from tests.support.world import PARTITIONS, TARGET, TENANT, Worker, World, run_world

SUCCEEDED, CANCELLED, SKIPPED = RunState.SUCCEEDED, RunState.CANCELLED, RunState.SKIPPED
WAITING, WITHDRAWN = RunState.WAITING, RunState.WITHDRAWN

# Beyond what an edit leaves alone and what only a holder can take back.
AHEAD_S = 100
BACKOFF_S = 6


class Phase(StrEnum):
    PLANNED = "planned"
    CLAIMED = "claimed"
    IN_FLIGHT = "in-flight"
    RETRYING = "between-retries"
    FINISHED = "finished"


SCHEDULED_S = {Phase.PLANNED: AHEAD_S, Phase.CLAIMED: AHEAD_S}


class End(NamedTuple):
    """What became of a run: its state, the version it has, and the calls that ended since the change."""

    state: RunState
    version: int
    calls: int


class Scene:
    """One job in each phase, all held by one worker."""

    def __init__(self, world: World, worker: Worker) -> None:
        self.world = world
        self.worker = worker
        self.calls: Counter[RunKey] = Counter()
        self.signals = Signals(world.shard, worker.lease, worker.held, StubFire(worker))  # type: ignore[arg-type]
        self.at_ms = {phase: world.second(SCHEDULED_S.get(phase, -1)) for phase in Phase}
        self.keys: dict[Phase, RunKey] = {}

    async def begin(self, **settings: Any) -> Scene:
        world = self.world
        await world.rows(f"UPDATE marks SET mark_at = mark_at - {AHEAD_S * 1_000}")
        for phase in Phase:
            job_id = await world.job(phase.value, RunAt(self.at_ms[phase]), **settings)
            self.keys[phase] = RunKey(partition_of(TENANT, phase, PARTITIONS), self.at_ms[phase], job_id)
        now_ms = world.now_ms
        await self.worker.plan_all()
        world.clock.wall_ms += (AHEAD_S - 20) * 1_000
        await self.worker.plan_all()
        world.clock.wall_ms = now_ms
        await self.worker.claim.run_once(now_ms)
        held = {run.key: run for run in self.worker.runs()}
        if self.keys[Phase.PLANNED] in held:
            self.worker.settle.given_back(held[self.keys[Phase.PLANNED]])
        held[self.keys[Phase.IN_FLIGHT]].in_flight = True
        await self.worker.end(held[self.keys[Phase.RETRYING]], 500)
        await self.worker.end(held[self.keys[Phase.FINISHED]], 200)
        return self

    async def job(self, phase: Phase) -> JobRow:
        return (await find_jobs(self.world.shard, [(TENANT, phase.value)]))[TENANT, phase.value]

    async def go_on(self) -> None:
        """Signals first, then what is in flight is answered, then retries, then what lies ahead."""
        while await self.signals.run_once(self.world.now_ms):
            pass
        await self.worker.settle.finish()
        for run in [run for run in self.worker.held._runs.values() if run.in_flight and not run.decided]:
            await self._answer(run)
        for ahead_s in (0, BACKOFF_S, AHEAD_S + 1):
            self.world.clock.advance(max(0, self.world.second(ahead_s) - self.world.now_ms))
            await self.worker.join()
            await self.worker.plan_all()
            for _ in Phase:
                await self.worker.claim.run_once(self.world.now_ms)
                for run in [run for run in self.worker.runs() if run.due_ms <= self.world.now_ms]:
                    await self._answer(run)

    async def _answer(self, run: HeldRun) -> None:
        self.calls[run.key] += 1
        run.in_flight = False
        await self.worker.end(run)

    async def ends(self) -> dict[Phase, End]:
        rows = await self.world.rows("SELECT partition_id, scheduled_at, job_id, state, version FROM runs")
        found = {RunKey(*row[:3]): row[3:] for row in rows}
        return {phase: End(RunState(found[key][0]), found[key][1], self.calls[key]) for phase, key in self.keys.items()}

    async def beside(self) -> dict[Phase, RunState]:
        """The other runs of the same names: started by hand, or of a job that was created again."""
        known = ", ".join(str(tuple(key)) for key in self.keys.values())
        rows = await self.world.rows(
            "SELECT j.name, r.state FROM runs AS r JOIN jobs AS j USING (partition_id, job_id)"
            f" WHERE (r.partition_id, r.scheduled_at, r.job_id) NOT IN ({known})"
        )
        return {Phase(name): RunState(state) for name, state in rows}


async def edit(scene: Scene, phase: Phase) -> None:
    await edited(scene.world, phase.value, timeout_ms=5_000)


async def pause(scene: Scene, phase: Phase) -> None:
    await pause_job(scene.world.shard, await scene.job(phase), None, Windows())


async def resume(scene: Scene, phase: Phase) -> None:
    await pause(scene, phase)
    await resume_job(scene.world.shard, await scene.job(phase), None, Windows())


async def delete(scene: Scene, phase: Phase) -> None:
    await delete_job(scene.world.shard, await scene.job(phase), Windows())


async def create_again(scene: Scene, phase: Phase) -> None:
    await delete(scene, phase)
    again = Definition(RunAt(scene.world.second(AHEAD_S)), TARGET)
    partition_id = partition_of(TENANT, phase, PARTITIONS)
    await create_jobs(scene.world.shard, [NewJob(TENANT, phase.value, partition_id, again, False)])


async def cancel(scene: Scene, phase: Phase) -> None:
    await cancel_run(scene.world.shard, *scene.keys[phase])


async def run_by_hand(scene: Scene, phase: Phase) -> None:
    await start_run(scene.world.shard, await scene.job(phase), Windows())


Change = Callable[[Scene, Phase], Awaitable[None]]

# In the order of the phases.
TABLE: list[tuple[Change, list[End]]] = [
    (edit, [End(SUCCEEDED, 2, 1), End(SUCCEEDED, 2, 1), End(SUCCEEDED, 1, 1), End(SUCCEEDED, 1, 1)]),
    (pause, [End(WITHDRAWN, 1, 0), End(WITHDRAWN, 1, 0), End(SUCCEEDED, 1, 1), End(WAITING, 1, 0)]),
    (resume, [End(SUCCEEDED, 3, 1), End(SUCCEEDED, 3, 1), End(SUCCEEDED, 1, 1), End(SUCCEEDED, 1, 1)]),
    (delete, [End(WITHDRAWN, 1, 0), End(WITHDRAWN, 1, 0), End(SUCCEEDED, 1, 1), End(SKIPPED, 1, 0)]),
    (create_again, [End(WITHDRAWN, 1, 0), End(WITHDRAWN, 1, 0), End(SUCCEEDED, 1, 1), End(SKIPPED, 1, 0)]),
    (cancel, [End(CANCELLED, 1, 0), End(CANCELLED, 1, 0), End(CANCELLED, 1, 0), End(CANCELLED, 1, 0)]),
    (run_by_hand, [End(SUCCEEDED, 1, 1), End(SUCCEEDED, 1, 1), End(SUCCEEDED, 1, 1), End(SUCCEEDED, 1, 1)]),
]


@pytest.mark.parametrize(("change", "ends"), TABLE, ids=[change.__name__ for change, _ in TABLE])
def test_p2_p7_a_change_meets_a_run_in_each_phase(shard_dsn: Dsn, change: Change, ends: list[End]) -> None:
    async def body(world: World) -> None:
        scene = await Scene(world, await world.worker().join()).begin()
        for phase in Phase:
            await change(scene, phase)
        await scene.go_on()
        assert list((await scene.ends()).values()) == [*ends, End(SUCCEEDED, 1, 0)]
        others = dict.fromkeys(Phase, SUCCEEDED) if change in (create_again, run_by_hand) else {}
        assert await scene.beside() == others

    run_world(shard_dsn, body)


@pytest.mark.parametrize(("overlap", "meets_open"), [(Overlap.SKIP, SKIPPED), (Overlap.WAIT, SUCCEEDED)])
def test_a_run_by_hand_that_must_not_overlap_meets_a_run_in_each_phase(
    shard_dsn: Dsn, overlap: Overlap, meets_open: RunState
) -> None:
    async def body(world: World) -> None:
        scene = await Scene(world, await world.worker().join()).begin(overlap=overlap)
        for phase in Phase:
            await run_by_hand(scene, phase)
        world.clock.wall_ms = await world.shard.now_ms() + 1
        await scene.worker.claim.run_once(world.now_ms)
        open_ones = {Phase.IN_FLIGHT, Phase.RETRYING}
        waiting = await scene.beside()
        assert all((waiting[phase] in (SKIPPED, WAITING)) == (phase in open_ones) for phase in Phase)
        await scene.go_on()
        assert {end.state for end in (await scene.ends()).values()} == {SUCCEEDED}
        assert await scene.beside() == {phase: meets_open if phase in open_ones else SUCCEEDED for phase in Phase}
        assert await world.rows("SELECT * FROM active") == []
        manual = await world.rows(f"SELECT COUNT(*) FROM runs WHERE trigger_kind = {Trigger.MANUAL:d}")
        assert manual == [(len(Phase),)]

    run_world(shard_dsn, body)
