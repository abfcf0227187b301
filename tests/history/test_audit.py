"""`secondzero audit` over days that have left MySQL: what Cassandra has counts, what neither has is missing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.commands import audit_past
from engine.config import Dsn
from engine.contact import Contact
from engine.local.folder import LocalService, announced, held
from engine.model import Cron, RunState, partition_of
from engine.rows import FinishedRun, RunRow
from engine.rules.timestamps import format_time
from engine.stages.days import DAY_MS
from tests.history.test_listing import write
from tests.support.cassandra import FLEET
from tests.support.mysql import query
from tests.support.world import PARTITIONS, TENANT, World, run_world

TIMES, IN_BOTH, STEP_MS = 12, 3, 10_000


class Left:
    """A fleet whose one job ran TIMES times ten days ago: all but some are recorded, and the last IN_BOTH stand in
    MySQL too, below its floor."""

    def __init__(self, dsn: Dsn, contact: Contact, unrecorded: tuple[int, ...] = ()) -> None:
        self.dsn = dsn
        self.contact = contact
        run_world(dsn, self._make)
        runs = [self._run(n) for n in range(TIMES) if n not in unrecorded]
        asyncio.run(write(contact, [FinishedRun(TENANT, 2, run) for run in runs]))

    async def _make(self, world: World) -> None:
        await world.rows(f"UPDATE fleet SET history = 'cassandra', fleet_id = UNHEX('{FLEET.hex()}')")
        first_ms = (world.now_ms - 10 * DAY_MS) // STEP_MS * STEP_MS
        self.times = [first_ms + n * STEP_MS for n in range(TIMES)]
        schedule = Cron("*/10 * * * * *", start_at_ms=self.times[0], end_at_ms=self.times[-1])
        self.job_id = await world.job("job", schedule, next_run_at_ms=first_ms)
        await world.rows("UPDATE jobs SET next_run_at = NULL")
        rows = ", ".join(
            f"({partition_of(TENANT, 'job', PARTITIONS)}, {at_ms}, {self.job_id}, {TENANT}, 1, 4, 2, 1, 1, {at_ms + 1})"
            for at_ms in self.times[-IN_BOTH:]
        )
        await world.rows(
            "INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind,"
            f" attempt, started_at) VALUES {rows}"
        )

    def _run(self, n: int) -> RunRow:
        state = RunState.CANCELLED if n % 4 == 0 else RunState.SUCCEEDED
        at_ms = self.times[n]
        return RunRow(at_ms, self.job_id, 1, state, 1, 1, 1, None, 1, 200, at_ms + 1, at_ms + 9, 0)


def audited(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    status = main(["audit", "--from", "2025-01-01T00:00:00Z", *flags])
    told = capsys.readouterr()
    return status, told.out, told.err


def of_given(left: Left, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    return audited(capsys, "--shard", left.dsn.text(), "--cassandra", left.contact.text(), *flags)


def test_an_audit_reads_both_stores_and_counts_each_run_once(
    shard_dsn: Dsn, contact: Contact, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(shard_dsn, contact)
    monkeypatch.setattr(audit_past, "ROWS_MAX", 5)  # more than one answer
    status, out, err = of_given(left, capsys, "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert (told["jobs"], told["times"], told["outcomes"]) == (1, TIMES, {"succeeded": TIMES - 3, "cancelled": 3})
    assert (told["missing"], told["double"], told["early"], told["unexpected"]) == (0, 0, 0, 0)
    part = ("--from", format_time(left.times[2]), "--to", format_time(left.times[5]))
    assert json.loads(of_given(left, capsys, *part, "--json")[1])["times"] == 4


def test_p2_a_run_that_neither_store_has_is_missing(
    shard_dsn: Dsn, contact: Contact, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Left(shard_dsn, contact, unrecorded=(2, TIMES - 1))
    status, out, _ = of_given(left, capsys)
    assert status == 1
    assert "1 missing · 0 double · 0 early · 0 unexpected" in out
    assert f"missing    {format_time(left.times[2])}  job" in out


def test_what_runs_in_a_folder_is_audited_with_its_history(
    shard_dsn: Dsn, contact: Contact, tmp_path: Path
) -> None:
    """By another process: the one that holds the folder does not see that it is held."""
    left = Left(shard_dsn, contact)
    service = LocalService((shard_dsn,), "http://127.0.0.1:1", "http://127.0.0.1:2", contact)
    with held(tmp_path), announced(tmp_path, service):
        command = [sys.executable, "-m", "engine", "audit", "--from", "2025-01-01T00:00:00Z", "--json"]
        told = subprocess.run([*command, "--data", tmp_path], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["times"] == len(left.times)


@pytest.mark.parametrize(
    ("cassandra", "said"),
    [
        (None, "this fleet's history is in Cassandra: give its address"),
        ("cassandra://127.0.0.1:1/x", "without the history nothing can be said of what is there: "),
    ],
)
def test_no_audit_is_made_of_half_the_stores(
    shard_dsn: Dsn, contact: Contact, capsys: pytest.CaptureFixture[str], cassandra: str | None, said: str
) -> None:
    Left(shard_dsn, contact)
    given = ["--cassandra", cassandra] if cassandra else []
    status, out, err = audited(capsys, "--shard", shard_dsn.text(), *given)
    assert (status, out) == (1, "")
    assert err.startswith(f"secondzero: {said}")
    assert len(err.splitlines()) == 1


def test_an_audit_of_another_fleet_s_history_is_refused(
    shard_dsn: Dsn, contact: Contact, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Left(shard_dsn, contact)
    asyncio.run(query(shard_dsn, "UPDATE fleet SET fleet_id = UNHEX(REPEAT('ab', 16))"))
    status, _, err = of_given(left, capsys)
    assert (status, err.splitlines()[0].endswith("belongs to another fleet; give each its own")) == (1, True)
