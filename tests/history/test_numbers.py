"""A job's numbers where its days have left MySQL: whole hours from the rollups, the others read where they stand."""

from __future__ import annotations

import os
import signal

from engine.clock import wall_ms
from engine.config import Dsn
from engine.contact import Contact
from engine.local.cassandra import CassandraServer
from engine.model import HOUR_MS
from engine.rules.timestamps import parse_time
from engine.store.rollups import RUNS_MIN
from tests.api.test_stats import SPANS
from tests.history.test_listing import IN_BOTH_FROM, IN_BOTH_TO, RUNS, Listed, listed

# Of the runs that tests.history.test_listing writes: those of MySQL have no call.
LAG_MS, DURATION_MS = 1, 8


def record_below(job: Listed, at_ms: int) -> None:
    """All runs below a time have been recorded; there are numbers of no hour."""
    partition_id = job.table.partition_id
    job.table.query("UPDATE marks SET mark_at = 0")
    job.table.query(f"INSERT IGNORE INTO counted VALUES ({partition_id}, {wall_ms() // HOUR_MS * HOUR_MS}, 0)")
    job.table.query(f"REPLACE INTO recorded VALUES ({partition_id}, {at_ms}, 0, 1, 0)")


def test_numbers_of_thirty_days_are_whole_where_the_days_have_left(shard_dsn: Dsn, contact: Contact) -> None:
    with listed(shard_dsn, contact) as job:
        for n in (IN_BOTH_FROM, IN_BOTH_TO - 1):
            record_below(job, job.times[n] + 1)
            stats = job.tenant.get("/v1/jobs/job/stats").json
            assert stats["last_30_days"]["complete"]
            assert stats["last_30_days"]["runs"] == {"succeeded": 48, "failed": 0, "cancelled": 12, "skipped": 0}
            day_ms = parse_time(stats["last_day"]["from"])
            assert sum(stats["last_day"]["runs"].values()) == sum(at_ms >= day_ms for at_ms in job.times)
            assert stats["last_30_days"]["lag_ms"] == {"mean": LAG_MS, "max": LAG_MS}
            assert stats["last_30_days"]["duration_ms"] == {"mean": DURATION_MS, "max": DURATION_MS}


def test_a_busy_hour_counts_by_its_rollup_after_its_day_has_left_and_is_not_read(
    shard_dsn: Dsn, contact: Contact
) -> None:
    with listed(shard_dsn, contact) as job:
        record_below(job, job.times[IN_BOTH_FROM] + 1)
        for n in (RUNS - 1, RUNS - 10):
            job.table.query(
                f"INSERT INTO job_hours VALUES ({job.table.partition_id}, {job.times[n]}, {job.table.job_id},"
                f" {RUNS_MIN}, 1000, 0, 0, {RUNS_MIN + 1000}, 0, 77, 0, 78)"
            )
        numbers = job.tenant.get("/v1/jobs/job/stats").json["last_30_days"]
        assert numbers["complete"]
        # Of both hours the one run that stands in Cassandra is not added.
        assert sum(numbers["runs"].values()) == RUNS - 2 + 2 * (RUNS_MIN + 1000)
        assert (numbers["lag_ms"]["max"], numbers["duration_ms"]["max"]) == (77, 78)


def test_while_cassandra_is_away_numbers_say_that_they_are_not_whole(
    cassandra_node: CassandraServer, shard_dsn: Dsn, contact: Contact
) -> None:
    with listed(shard_dsn, contact) as job:
        record_below(job, job.times[IN_BOTH_TO - 1])
        os.kill(cassandra_node.pid, signal.SIGSTOP)
        try:
            stats = job.tenant.get("/v1/jobs/job/stats").json
        finally:
            os.kill(cassandra_node.pid, signal.SIGCONT)
        assert [stats[span]["complete"] for span in SPANS] == [True, True, False]
        assert sum(stats["last_30_days"]["runs"].values()) == IN_BOTH_TO


def test_what_the_history_does_not_keep_so_long_is_not_told_as_whole(shard_dsn: Dsn, contact: Contact) -> None:
    with listed(shard_dsn, contact) as job:
        record_below(job, job.times[IN_BOTH_FROM] + 1)
        job.tenant.server.service.history._retention_days = 5
        assert not job.tenant.get("/v1/jobs/job/stats").json["last_30_days"]["complete"]
