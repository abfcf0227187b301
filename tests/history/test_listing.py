"""A job's runs over the API, from MySQL and a real Cassandra in one list: each once, in order, whatever is away."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from api import past_runs
from engine.__main__ import main
from engine.clock import wall_ms
from engine.commands import runs_export
from engine.config import Dsn
from engine.contact import Contact
from engine.events import Events
from engine.history.history import History
from engine.local.cassandra import CassandraServer
from engine.model import RunState
from engine.rows import AttemptRow, FinishedRun, RunRow
from engine.rules.timestamps import format_time, parse_time
from tests.support.api import RunTable, Tenant, served
from tests.support.cassandra import CONNECT_S, RETENTION_DAYS
from tests.support.wait import until, until_async

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RUNS = 60
# By age in hours: younger ones are in MySQL alone, older ones in Cassandra alone, those between in both.
IN_BOTH_FROM, IN_BOTH_TO = 24, 36


class Listed:
    """A job with RUNS runs, one an hour, every fifth of them failed; and where the two stores meet."""

    def __init__(self, tenant: Tenant, contact: Contact) -> None:
        tenant.put("job")
        self.tenant = tenant
        self.table = RunTable(tenant, "job")
        newest_ms = wall_ms() // HOUR_MS * HOUR_MS
        self.times = [newest_ms - n * HOUR_MS for n in range(RUNS)]
        self.table.query(f"UPDATE jobs SET created_at = {newest_ms - 10 * DAY_MS}")
        self.table.query(f"UPDATE floor SET floor_at = {self.times[IN_BOTH_FROM] + 1}")
        for n, at_ms in enumerate(self.times[:IN_BOTH_TO]):
            self.table.add(at_ms, self.state(n))
        past = [self.finished(n) for n in range(IN_BOTH_FROM, RUNS)]
        asyncio.run(write(contact, past))

    def state(self, n: int) -> RunState:
        return RunState.CANCELLED if n % 5 == 0 else RunState.SUCCEEDED

    def finished(self, n: int) -> FinishedRun:
        at_ms = self.times[n]
        run = RunRow(at_ms, self.table.job_id, 1, self.state(n), 1, 2, 2, None, 1, 200, at_ms + 1, at_ms + 9, 0)
        return FinishedRun(self.tenant.tenant_id, 2, run, [AttemptRow(1, 1, 500, at_ms, at_ms + 4, "no", b"sorry")])

    def pages(self, query: str) -> list[Any]:
        found, token = [], None
        while True:
            reply = self.tenant.get(f"/v1/jobs/job/runs?{query}" + (f"&page_token={token}" if token else ""))
            assert reply.status == 200, reply
            found.append(reply.json)
            token = reply.json["next_page_token"]
            if token is None:
                return found

    def listed(self, query: str) -> list[int]:
        return [parse_time(run["scheduled_at"]) for page in self.pages(query) for run in page["runs"]]


async def write(contact: Contact, runs: list[FinishedRun]) -> None:
    history = History(contact, RETENTION_DAYS, Events())
    history.start()
    try:
        await until_async(lambda: history.connected, CONNECT_S)
        await history.write(runs)
    finally:
        await history.stop()


@contextmanager
def listed(dsn: Dsn, contact: Contact) -> Iterator[Listed]:
    with served([dsn], history="cassandra", cassandra=contact) as server:
        assert server.service.history is not None
        until(lambda: server.service.history.connected, CONNECT_S)
        yield Listed(server.tenant(), contact)


def test_a_run_is_listed_once_whether_it_stands_in_one_store_or_in_both(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listed(shard_dsn, contact) as job:
        for size in (1, 7, 59, 60, 100):
            assert job.listed(f"page_size={size}") == job.times
        assert all("warnings" not in page for page in job.pages("page_size=7"))
        cancelled = [at_ms for n, at_ms in enumerate(job.times) if n % 5 == 0]
        assert job.listed("state=cancelled&page_size=3") == cancelled
        assert job.listed("state=pending") == job.listed("state=running") == []
        spans = [(30, 50), (10, 30), (40, 40), (24, 24)]
        for newest, oldest in spans:
            period = f"scheduled_from={format_time(job.times[oldest])}&scheduled_to={format_time(job.times[newest])}"
            assert job.listed(f"{period}&page_size=4") == job.times[newest : oldest + 1]
        monkeypatch.setattr(past_runs, "ROWS_READ_MAX", 5)
        monkeypatch.setattr(past_runs, "FILTERED_ROWS", 4)
        assert job.listed("state=cancelled&page_size=3") == cancelled
        assert job.listed("page_size=7") == job.times


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_export_has_each_run_once_from_both_stores(
    shard_dsn: Dsn, contact: Contact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setattr(runs_export, "PAGE_RUNS", 7)
    with listed(shard_dsn, contact) as job:
        monkeypatch.setenv("SECONDZERO_URL", f"http://127.0.0.1:{job.tenant.server.port}")
        monkeypatch.setenv("SECONDZERO_API_KEY", str(job.tenant.key))
        first, last = job.times[-2], job.times[1]
        span = ("--from", format_time(first), "--to", format_time(last))
        assert main(["runs", "export", "--job", "job", *span, "--format", form]) == 0
        lines = capsys.readouterr().out.splitlines()
        runs = [json.loads(line) for line in lines] if form == "jsonl" else list(csv.DictReader(lines))
        assert [parse_time(run["scheduled_at"]) for run in runs] == [at for at in job.times if first <= at <= last]


def test_a_run_that_has_left_mysql_is_answered_with_its_attempts(shard_dsn: Dsn, contact: Contact) -> None:
    with listed(shard_dsn, contact) as job:
        path = f"/v1/jobs/job/runs/{format_time(job.times[-1])}"
        run = job.tenant.get(path).json
        assert (run["state"], run["attempts"], run["status_code"]) == ("succeeded", 2, 200)
        assert [(each["attempt"], each["status_code"]) for each in run["attempt_list"]] == [(1, 500), (2, 200)]
        assert job.tenant.get(f"/v1/jobs/job/runs/{format_time(job.times[-1] - 1000)}").status == 404


def test_what_is_retried_after_its_day_has_gone_is_told_as_it_is_now_with_all_its_attempts(
    shard_dsn: Dsn, contact: Contact
) -> None:
    with listed(shard_dsn, contact) as job:
        at_ms, table = job.times[-1], job.table
        failed = job.finished(RUNS - 1).run._replace(state=RunState.FAILED, status_code=500, finished_at_ms=at_ms + 10)
        attempts = [AttemptRow(1, 1, 500, at_ms, at_ms + 4, "no", b"sorry"), AttemptRow(2, 1, 500, 1, 2, "no", b"")]
        asyncio.run(write(contact, [FinishedRun(job.tenant.tenant_id, 2, failed, attempts)]))
        columns = "partition_id, scheduled_at, job_id, tenant_id, name, version, state, priority, trigger_kind, attempt"
        place = f"{table.partition_id}, {at_ms}, {table.job_id}, {job.tenant.tenant_id}, 'job'"
        table.query(f"INSERT INTO dead_letters ({columns}, tries, died_at) VALUES ({place}, 1, 5, 2, 1, 2, 2, {at_ms})")
        table.query(f"UPDATE floor SET gone_to = {job.times[IN_BOTH_TO]}, closed_to = gone_to")
        path = f"/v1/jobs/job/runs/{format_time(at_ms)}"
        assert job.tenant.get(path).json["state"] == "failed"
        assert job.listed("state=failed") == [at_ms]
        assert job.tenant.call("POST", f"{path}:retry").status == 202
        assert job.listed("state=failed") == []
        assert job.listed("state=pending") == [at_ms]
        assert job.listed("page_size=7") == job.times
        again = job.tenant.get(path).json
        assert (again["state"], [each["attempt"] for each in again["attempt_list"]]) == ("pending", [1, 2])
        ended = f"state = 4, attempt = 3, status_code = 200, started_at = {at_ms + 20}, finished_at = {at_ms + 30}"
        table.query(f"UPDATE runs SET {ended} WHERE scheduled_at = {at_ms}")
        again = job.tenant.get(path).json
        assert (again["state"], [each["attempt"] for each in again["attempt_list"]]) == ("succeeded", [1, 2, 3])
        assert at_ms in job.listed("state=succeeded&page_size=9")
        ended_long_ago = f"/v1/jobs/job/runs/{format_time(job.times[-2])}:cancel"
        assert "it is succeeded" in job.tenant.call("POST", ended_long_ago).json["detail"]


def test_while_cassandra_is_away_mysql_answers_and_says_that_older_history_is_missing(
    cassandra_node: CassandraServer, shard_dsn: Dsn, contact: Contact
) -> None:
    with listed(shard_dsn, contact) as job:
        os.kill(cassandra_node.pid, signal.SIGSTOP)
        try:
            first, *more = job.pages("page_size=20")
            assert "warnings" not in first  # all of it is above the floor
            assert all(len(page["warnings"]) == 1 for page in more)
            assert "older history is unavailable for now" in more[0]["warnings"][0]
            listed_ms = [parse_time(run["scheduled_at"]) for page in [first, *more] for run in page["runs"]]
            assert listed_ms == job.times[:IN_BOTH_TO]
            older = job.tenant.get(f"/v1/jobs/job/runs/{format_time(job.times[-1])}")
            assert (older.status, older.headers["Retry-After"]) == (503, "1")
            assert job.tenant.get(f"/v1/jobs/job/runs/{format_time(job.times[0])}").status == 200
        finally:
            os.kill(cassandra_node.pid, signal.SIGCONT)
        assert until(lambda: job.listed("page_size=20") == job.times, CONNECT_S)
