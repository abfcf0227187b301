"""What is written to a real Cassandra is read back; the wrong one is refused in one line; one that dies comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.config import Settings
from engine.contact import Contact
from engine.errors import HistoryUnavailable, OperatorError
from engine.events import Events
from engine.history import write
from engine.history.check import check_apart
from engine.history.history import History
from engine.history.schema import VERSION, check_history, create_history, fleet_mark
from engine.history.session import CONSISTENCY, connect
from engine.history.times import month_of, months
from engine.local.cassandra import CassandraServer
from engine.local.listener import free_port
from engine.rows import AttemptRow, FinishedRun, Report, RunRow
from tests.support.cassandra import CONNECT_S, FLEET, RETENTION_DAYS
from tests.support.wait import until_async

DAY_MS = 86_400_000
AT_MS = 1_796_083_200_000  # 2026-12-01
TENANT = 7


def run_of(job_id: int, at_ms: int, attempts: int = 0, **columns: Any) -> FinishedRun:
    row = RunRow(at_ms, job_id, 1, 4, 1, attempts + 1, attempts + 1, None, 1, 200, at_ms + 1, at_ms + 9, 0)
    failed = [AttemptRow(n + 1, 1, 500, at_ms, at_ms + n, "no" * 10, b"x" * 1_000) for n in range(attempts)]
    return FinishedRun(TENANT, 2, row._replace(**columns), failed)


def with_history(contact: Contact, body: Callable[[History], Awaitable[None]]) -> None:
    async def main() -> None:
        history = History(contact, RETENTION_DAYS, Events())
        history.start()
        try:
            await until_async(lambda: history.connected, CONNECT_S)
            await body(history)
        finally:
            await history.stop()

    asyncio.run(main())


def test_runs_are_listed_newest_first_over_months_each_job_by_itself(contact: Contact) -> None:
    async def body(history: History) -> None:
        times = [AT_MS - n * 5 * DAY_MS for n in range(12)]
        await history.write([run_of(1, at_ms) for at_ms in times] + [run_of(2, AT_MS)])
        found = await history.list_runs(TENANT, 1, AT_MS - 100 * DAY_MS, AT_MS, 100)
        assert [run.scheduled_at_ms for run in found] == times
        some = await history.list_runs(TENANT, 1, times[10], times[2], 100)
        assert [run.scheduled_at_ms for run in some] == times[2:11]
        assert len(await history.list_runs(TENANT, 1, 0, AT_MS, 3)) == 3
        assert await history.list_runs(TENANT + 1, 1, times[-1], AT_MS, 100) == []

    with_history(contact, body)


def test_an_answer_has_all_rows_that_were_asked_for_whatever_the_driver_takes_for_a_page(contact: Contact) -> None:
    async def body(history: History) -> None:
        first_ms, runs = AT_MS + DAY_MS, 5_200
        for n in range(0, runs, 1_300):
            await history.write([run_of(1, first_ms + k * 1000) for k in range(n, n + 1_300)])
        assert len(await history.list_ends(TENANT, 1, first_ms, first_ms + DAY_MS, runs + 1)) == runs
        assert len(await history.list_runs(TENANT, 1, first_ms, first_ms + DAY_MS, runs - 1)) == runs - 1

    with_history(contact, body)


def test_what_a_run_lacks_stays_absent_and_large_attempts_come_back_whole(contact: Contact) -> None:
    async def body(history: History) -> None:
        skipped = run_of(3, AT_MS, state=7, reason=2, outcome=None, status_code=None, started_at_ms=None)
        heavy = run_of(4, AT_MS, attempts=100)
        await history.write([skipped, heavy, *(run_of(5, AT_MS + n * 1000, attempts=5) for n in range(40))])
        assert await history.read_run(TENANT, [3], AT_MS) == (skipped.run, [], None)
        assert await history.read_run(TENANT, [9, 4, 3], AT_MS) == (heavy.run, heavy.attempts, None)
        assert await history.read_run(TENANT, [9], AT_MS) is None
        assert len(await history.list_runs(TENANT, 5, AT_MS, AT_MS + DAY_MS, 100)) == 40

    with_history(contact, body)


def test_rows_go_in_unlogged_batches_of_at_most_fifty_and_of_bounded_size(contact: Contact) -> None:
    async def body(history: History) -> None:
        session = history._connected()
        light = [len(rows) for rows in write.batches(session, [run_of(n, AT_MS) for n in range(120)])]
        assert light == [50, 50, 20]
        heavy = [len(rows) for rows in write.batches(session, [run_of(n, AT_MS, attempts=10) for n in range(9)])]
        assert heavy == [2, 2, 2, 2, 1]
        assert [len(rows) for rows in write.batches(session, [run_of(1, AT_MS, attempts=100)])] == [1]

    with_history(contact, body)


def test_every_statement_has_its_consistency_in_one_table(contact: Contact) -> None:
    session = connect(contact)
    try:
        session.prepare(*CONSISTENCY)
        assert {session.prepared(name).consistency_level for name in CONSISTENCY} == {6}  # LOCAL_QUORUM
    finally:
        session.close()


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "found"),
    [
        (AT_MS, AT_MS, [202612]),
        (AT_MS - 1, AT_MS, [202612, 202611]),
        (AT_MS - 70 * DAY_MS, AT_MS + 40 * DAY_MS, [202701, 202612, 202611, 202610, 202609]),
        (AT_MS, AT_MS - 1, [] if month_of(AT_MS) > month_of(AT_MS - 1) else [202612]),
    ],
)
def test_a_range_touches_its_months_the_newest_first(from_ms: int, to_ms: int, found: list[int]) -> None:
    assert months(from_ms, to_ms) == found


def settings_for(contact: Contact, **more: Any) -> Settings:
    return Settings(history="cassandra", cassandra=contact, **more)


def test_wrong_contact_points_are_one_clear_line() -> None:
    contact = Contact((("127.0.0.1", free_port()),), "nowhere")
    assert "refused" in check_apart(settings_for(contact), FLEET)
    with pytest.raises(OperatorError, match=r"no Cassandra answers: cassandra://127\.0\.0\.1:.*refused"):
        create_history(contact, FLEET, RETENTION_DAYS)


def test_a_keyspace_that_will_not_do_is_refused_in_one_line(contact: Contact) -> None:
    assert check_apart(settings_for(contact), FLEET) == ""
    with pytest.raises(OperatorError, match="its runs live for 30 days, retention_days is 10: set that, or run ALTER"):
        check_apart(settings_for(contact, retention_days=10), FLEET)
    with pytest.raises(OperatorError, match="belongs to another fleet"):
        create_history(contact, b"another fleet 16", RETENTION_DAYS)
    with pytest.raises(OperatorError, match="no history was created here; run: secondzero migrate"):
        check_apart(settings_for(replace(contact, keyspace="not_there")), FLEET)
    session = connect(contact)
    session.execute_now("write_about", (VERSION + 1, FLEET))
    session.close()
    with pytest.raises(OperatorError, match=r"newer release \(version 2, this one knows 1\): upgrade"):
        check_apart(settings_for(contact), FLEET)
    with pytest.raises(OperatorError, match="newer release"):
        create_history(contact, FLEET, RETENTION_DAYS)


def test_p9_who_reads_the_history_learns_nothing_that_signs_tokens(contact: Contact) -> None:
    session = connect(contact)
    try:
        ((_, stored),) = session.execute_now("read_about")
        check_history(session, contact, FLEET, RETENTION_DAYS)
    finally:
        session.close()
    assert stored == fleet_mark(FLEET) != FLEET


def test_p10_a_node_that_takes_its_time_to_read_has_lost_nothing_and_is_waited_for(
    cassandra_node: CassandraServer, contact: Contact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses what a full socket does not hold; nothing of that was sent."""
    monkeypatch.setattr(write, "IN_FLIGHT_MAX", 200)

    async def body(history: History) -> None:
        report = Report(1, 100, "", b"r" * 65_536)
        runs = [run_of(1, AT_MS + n * 1000, attempts=100)._replace(report=report) for n in range(200)]
        (pool,) = history._connected()._session._pools.values()
        os.kill(cassandra_node.pid, signal.SIGSTOP)
        try:
            filling = asyncio.create_task(history.write(runs[1:]))
            await until_async(lambda: not any(each._socket_writable for each in pool.get_connections()))
            refused = asyncio.create_task(history.write(runs[:1]))
            await asyncio.wait([refused], timeout=0.1)
            assert not refused.done()
        finally:
            os.kill(cassandra_node.pid, signal.SIGCONT)
        await asyncio.gather(filling, refused)
        assert history.losses == 0
        assert len(await history.list_runs(TENANT, 1, AT_MS, AT_MS + DAY_MS, 1_000)) == len(runs)

    with_history(contact, body)


def test_p10_a_node_that_hangs_answers_no_read_for_longer_than_the_bound(
    cassandra_node: CassandraServer, contact: Contact
) -> None:
    async def body(history: History) -> None:
        await history.write([run_of(1, AT_MS)])
        os.kill(cassandra_node.pid, signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            with pytest.raises(HistoryUnavailable):
                await history.list_runs(TENANT, 1, AT_MS, AT_MS, 10)
            assert loop.time() - begun < 3 * 2.0
        finally:
            os.kill(cassandra_node.pid, signal.SIGCONT)

    with_history(contact, body)


def test_the_driver_is_loaded_by_no_executor_and_not_where_the_history_is_in_mysql() -> None:
    script = (
        "import sys, engine.__main__, engine.node, engine.executor, engine.keeper, api.service, api.processes;"
        " from contextlib import suppress; sys.argv = ['secondzero', '--help'];"
        "\nwith suppress(SystemExit): engine.__main__.main()\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'cassandra'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
