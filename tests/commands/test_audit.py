"""`secondzero audit`, as it is typed: what it says, and its exit status."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.__main__ import main
from engine.config import Dsn
from engine.model import Cron, RunAt
from engine.rules.timestamps import format_time
from tests.support.mysql import query
from tests.support.world import World, run_world

AGO_S = 20


def three_runs(dsn: Dsn) -> None:
    """A job of every second whose three runs have ended well, and one that has been paused ever since."""

    async def body(world: World) -> None:
        begins_ms = world.second(-AGO_S)
        three = Cron("* * * * * *", start_at_ms=begins_ms, end_at_ms=begins_ms + 2_000)
        await world.job("three", three, next_run_at_ms=begins_ms)
        worker = await world.worker().join()
        await worker.plan_all()
        await worker.claim.run_once(world.now_ms)
        for run in worker.runs():
            await worker.end(run)
        await world.job("paused", RunAt(begins_ms))
        await world.rows(
            f"UPDATE jobs SET state = 2, next_run_at = NULL, resume_at = {begins_ms} WHERE name = 'paused'"
        )

    run_world(dsn, body)


def audited(dsn: Dsn, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["audit", "--shard", dsn.text(), *arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_flawless_period_exits_with_0_and_counts_every_outcome(
    shard_dsn: Dsn, capsys: pytest.CaptureFixture[str]
) -> None:
    three_runs(shard_dsn)
    status, out, _ = audited(shard_dsn, capsys, "--from", "2025-01-01T00:00:00Z", "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["jobs"], told["times"], told["outcomes"], told["paused"]) == (2, 4, {"succeeded": 3}, 1)
    assert (told["missing"], told["double"], told["early"], told["unexpected"]) == (0, 0, 0, 0)


def test_p2_a_lost_run_exits_with_1_and_is_named(shard_dsn: Dsn, capsys: pytest.CaptureFixture[str]) -> None:
    three_runs(shard_dsn)
    (first_ms,) = asyncio.run(query(shard_dsn, "SELECT MIN(scheduled_at) FROM runs"))[0]
    asyncio.run(query(shard_dsn, f"DELETE FROM runs WHERE scheduled_at = {first_ms + 1_000}"))
    status, out, _ = audited(shard_dsn, capsys, "--from", "2025-01-01T00:00:00Z")
    assert status == 1
    assert "1 missing · 0 double · 0 early · 0 unexpected" in out
    assert f"missing    {format_time(first_ms + 1_000)}  three" in out
    before, _, _ = audited(shard_dsn, capsys, "--from", format_time(first_ms), "--to", format_time(first_ms))
    assert before == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--from", "yesterday"], "--from: 'yesterday' is not"), (["--to", "2999-01-01T00:00:00Z"], "--to:")],
)
def test_times_that_cannot_be_audited_are_refused(
    shard_dsn: Dsn, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    three_runs(shard_dsn)
    given = flags if "--from" in flags else ["--from", "2025-01-01T00:00:00Z", *flags]
    status, _, err = audited(shard_dsn, capsys, *given)
    assert status == 2
    assert said in err
