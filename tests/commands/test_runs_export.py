"""`secondzero runs export` against a served API: every run of a period once, and a clean end whatever happens."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from engine.__main__ import main
from engine.clock import wall_ms
from engine.commands import runs_export
from engine.model import RunState
from engine.rules.timestamps import format_time
from tests.support.api import ApiServer, RunTable, Tenant, served
from tests.support.mysql import SchemaPool

RUNS = 25
COMMAND = [sys.executable, "-m", "engine", "runs", "export", "--job", "job"]


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second, served([first, second]) as server:
        yield server


@pytest.fixture
def times_ms(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times of a job's runs, the newest first; the job's tenant stands in the environment."""
    tenant: Tenant = api_server.tenant()
    monkeypatch.setenv("SECONDZERO_URL", f"http://127.0.0.1:{api_server.port}/")
    monkeypatch.setenv("SECONDZERO_API_KEY", str(tenant.key))
    monkeypatch.setattr(runs_export, "PAGE_RUNS", 10)
    tenant.put("job")
    table = RunTable(tenant, "job")
    times = [wall_ms() // 1000 * 1000 - n * 1000 for n in range(1, RUNS + 1)]
    for at_ms in times:
        table.add(at_ms, RunState.SUCCEEDED, started_at=at_ms + 5, finished_at=at_ms + 9, tries=1)
    return times


def export(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        status = main(["runs", "export", "--job", "job", *more])
    except SystemExit as ended:
        status = int(str(ended.code))
    return status, *capsys.readouterr()


def test_every_run_is_a_line_of_json(times_ms: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = export(capsys)
    runs = [orjson.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "25 runs\n")
    assert [run["scheduled_at"] for run in runs] == [format_time(at_ms) for at_ms in times_ms]
    assert runs[0]["lag_ms"] == 5


def test_csv_has_a_head_and_only_the_period_asked_for(times_ms: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    period = ("--from", format_time(times_ms[14]), "--to", format_time(times_ms[3]))
    status, out, _ = export(capsys, "--format", "csv", *period)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert status == 0
    assert [row["scheduled_at"] for row in rows] == [format_time(at_ms) for at_ms in times_ms[3:15]]
    assert {row["state"] for row in rows} == {"succeeded"}
    assert rows[0]["reason"] == ""


def test_an_export_that_fails_says_how_to_go_on_and_goes_on_there(
    times_ms: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.csv"
    call, calls = runs_export.Api.call, []

    def fails_once(self: runs_export.Api, *asked: object, **more: object) -> object:
        calls.append(asked)
        if len(calls) == 2:
            raise runs_export.OperatorError("the API does not answer")
        return call(self, *asked, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(runs_export.Api, "call", fails_once)
    to_file = ("--format", "csv", "-o", str(file), "--json")
    status, out, err = export(capsys, *to_file)
    assert (status, out) == (1, "")
    assert "to go on: --resume " in err
    token = err.rpartition(" ")[2].strip()
    status, out, _ = export(capsys, *to_file, "--resume", token)
    assert (status, orjson.loads(out)) == (0, {"runs": RUNS - 10, "file": str(file)})
    rows = list(csv.DictReader(file.open()))
    assert [row["scheduled_at"] for row in rows] == [format_time(at_ms) for at_ms in times_ms]


def test_a_reader_that_stops_reading_ends_it_without_a_word(times_ms: list[int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(COMMAND, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_what_is_missing_in_the_answer_is_said_and_is_a_failure(
    times_ms: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"runs": [], "next_page_token": None, "warnings": ["older history is unavailable for now"]}
    monkeypatch.setattr(runs_export.Api, "call", lambda *asked, **more: page)
    status, _, err = export(capsys)
    assert (status, err) == (1, "secondzero: not all of it: older history is unavailable for now\n")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--format", "xml"), 2, "xml"),
        (("--json",), 2, "--json: needs --output"),
        (("--from", "yesterday"), 1, "scheduled_from"),
        (("-o", "/nowhere/runs"), 1, "/nowhere/runs: No such file or directory"),
    ],
)
def test_what_cannot_be_exported_is_said(
    times_ms: list[int], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, says: str
) -> None:
    found, out, err = export(capsys, *words)
    assert (found, out) == (status, "")
    assert says in err
