"""`secondzero migrate`: from empty databases to a fleet with its first days, as often as one likes."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.clock import wall_ms
from tests.support.mysql import query

DAY_MS = 86_400_000


@pytest.fixture
def empty_databases(mysql_server):
    """Addresses of two databases that are not there yet."""
    dsns = [mysql_server.dsn(f"migrate_{number}") for number in range(2)]
    yield dsns
    for dsn in dsns:
        asyncio.run(query(replace(dsn, database=""), f"DROP DATABASE IF EXISTS {dsn.database}"))


def migrate(dsns, *flags: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "SECONDZERO_SHARD": " ".join(dsn.text() for dsn in dsns)}
    return subprocess.run(
        [sys.executable, "-m", "engine", "migrate", *flags], capture_output=True, text=True, timeout=120, env=environ
    )


def days(dsn, table: str) -> list[int]:
    text = (
        "SELECT partition_description FROM information_schema.partitions"
        f" WHERE table_schema = DATABASE() AND table_name = '{table}' ORDER BY partition_ordinal_position"
    )
    return [int(row[0]) for row in asyncio.run(query(dsn, text))]


def test_empty_databases_become_a_fleet_with_days_and_a_second_time_changes_nothing(empty_databases):
    first = migrate(empty_databases, "--json", "--partitions", "8")
    assert first.returncode == 0, first.stderr
    applied = json.loads(first.stdout)["applied"]
    assert applied[str(empty_databases[0])][0] == "0001_shard.sql"
    for dsn in empty_databases:
        assert asyncio.run(query(dsn, "SELECT COUNT(*) FROM partitions")) == [(4,)]
        for table in ("runs", "attempts"):
            ends = days(dsn, table)
            assert ends[0] <= wall_ms() - DAY_MS
            assert ends[-1] > wall_ms() + DAY_MS
    again = migrate(empty_databases, "--json")
    assert again.returncode == 0, again.stderr
    assert list(json.loads(again.stdout)["applied"].values()) == [[], []]


def test_another_shard_count_is_refused_in_one_line_and_the_new_database_is_not_made(empty_databases, mysql_server):
    assert migrate(empty_databases[:1]).returncode == 0
    refused = migrate(empty_databases)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"secondzero: {empty_databases[0]}: created with shard count 1, now started with 2; it is fixed for life"
    ]
    there = asyncio.run(query(mysql_server.dsn(""), "SHOW DATABASES LIKE 'migrate_1'"))
    assert there == []


def test_no_shard_is_wrong_usage():
    answer = migrate([])
    assert answer.returncode == 2
    assert answer.stderr.startswith("secondzero: --shard: ")
