"""`secondzero migrate`: from empty databases to a fleet with its first days, as often as one likes."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.clock import wall_ms
from engine.config import Dsn
from engine.keys import Keys, new_key
from engine.local.listener import free_port
from engine.model import Cron, Definition, HeaderValue, HttpTarget, partition_of
from engine.store.jobs import find_jobs
from engine.store.shard import Shard
from engine.store.tenants import secrets_of
from migrations.apply import FOLDER, apply
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


OLD_FILES = ("0001", "0002", "0003", "0004", "0006")
CANARY = "c4nary-hunter2"
PLAIN_SECRET = b"s" * 32


def old_fleet(dsn: Dsn, folder) -> tuple[Dsn, bytes]:
    """One shard as a release left it that stored secrets in the clear, with a tenant and a job; its definition."""
    for file in FOLDER.glob("[0-9]*.sql"):
        if file.name.startswith(OLD_FILES):
            shutil.copy(file, folder)
    asyncio.run(apply(dsn, first=True, folder=folder))
    job_id = 1 << 40
    target = HttpTarget("https://example.com/", headers=(("X-Key", HeaderValue(CANARY, secret=True)),))
    definition = Definition(Cron("0 9 * * *"), target).encode()
    place = partition_of(1, "old", 8)
    now_ms = wall_ms()
    for statement in (
        "INSERT INTO fleet VALUES (1, X'00112233445566778899aabbccddeeff', 0, 1, 8)",
        f"INSERT INTO floor (id, floor_at) VALUES (1, {now_ms - now_ms % DAY_MS - DAY_MS})",
        *(f"INSERT INTO partitions VALUES ({number}, 1)" for number in range(8)),
        *(f"INSERT INTO marks VALUES ({number}, {now_ms})" for number in range(8)),
        *(f"INSERT INTO leases (partition_id, term) VALUES ({number}, 0)" for number in range(8)),
        f"INSERT INTO tenants (tenant_id, name, created_at) VALUES (1, 'acme', {now_ms})",
        f"INSERT INTO signing_secrets (tenant_id, created_at, secret) VALUES (1, {now_ms}, X'{PLAIN_SECRET.hex()}')",
        "INSERT INTO jobs (partition_id, job_id, tenant_id, name, alive, state, version, priority, overlap,"
        " next_run_at, created_at, updated_at)"
        f" VALUES ({place}, {job_id}, 1, 'old', 1, 1, 1, 2, 1, {now_ms + DAY_MS}, {now_ms}, 1)",
        f"INSERT INTO job_versions VALUES ({place}, {job_id}, 1, 1, 1, {now_ms}, 1, 'test', X'{definition.hex()}')",
    ):
        asyncio.run(query(dsn, statement))
    return dsn, definition


def run(dsn, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "SECONDZERO_SHARD": dsn.text(), **environ}
    return subprocess.run(
        [sys.executable, "-m", "engine", *words], capture_output=True, text=True, timeout=60, env=environ
    )


def stored(dsn) -> str:
    return repr([asyncio.run(query(dsn, f"SELECT * FROM {table}")) for table in ("job_versions", "signing_secrets")])


def test_p9_a_fleet_from_before_secrets_were_encrypted_is_told_what_to_do_and_sealed(empty_databases, tmp_path):
    dsn, definition = old_fleet(empty_databases[0], tmp_path)
    key = new_key()
    for words in (["engine"], ["api", "--port", str(free_port())], ["status"], ["tenant", "create", "new"]):
        refused = run(dsn, *words, SECONDZERO_SECRETS_KEY=key)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert refused.stderr.count("\n") == 1
        assert "run secondzero migrate" in refused.stderr.replace("run: ", "run "), refused.stderr
    lacking = run(dsn, "migrate", SECONDZERO_SECRETS_KEY_FILE=str(tmp_path / "none"))
    assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
    assert asyncio.run(query(dsn, "SHOW TABLES LIKE 'secret_keys'")) == [], "nothing was changed"
    assert CANARY in stored(dsn)
    done = run(dsn, "migrate", SECONDZERO_SECRETS_KEY=key)
    assert done.returncode == 0, done.stderr
    assert "2 secrets that stood in the clear" in done.stderr
    assert CANARY not in stored(dsn)
    assert PLAIN_SECRET.decode() not in stored(dsn)

    async def read():
        shard = Shard(dsn, 0, keys=Keys([key]))
        try:
            job = (await find_jobs(shard, [(1, "old")]))[1, "old"]
            return job.definition, [each.secret for each in await secrets_of(shard, 1)]
        finally:
            await shard.close()

    assert asyncio.run(read()) == (definition, [PLAIN_SECRET])
    again = run(dsn, "migrate", SECONDZERO_SECRETS_KEY=key)
    assert (again.returncode, again.stderr) == (0, "")
    # Killed after its last version and before the last signing secret, it goes on.
    asyncio.run(query(dsn, f"UPDATE signing_secrets SET secret = X'{PLAIN_SECRET.hex()}'"))
    assert "1 secrets" in run(dsn, "migrate", SECONDZERO_SECRETS_KEY=key).stderr
    assert asyncio.run(read()) == (definition, [PLAIN_SECRET])
    asyncio.run(query(dsn, "INSERT INTO migrations SELECT 999, 'later', checksum, 1, 1, 1 FROM migrations LIMIT 1"))
    newer = run(dsn, "engine", SECONDZERO_SECRETS_KEY=key)
    assert (newer.returncode, newer.stderr.count("\n")) == (2, 1)
    assert "newer release" in newer.stderr


def test_another_shard_count_is_refused_in_one_line_and_the_new_database_is_not_made(empty_databases, mysql_server):
    assert migrate(empty_databases[:1]).returncode == 0
    refused = migrate(empty_databases)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"secondzero: {empty_databases[0]}: created with shard count 1, now started with 2; it is fixed for life"
    ]
    there = asyncio.run(query(mysql_server.dsn(""), "SHOW DATABASES LIKE 'migrate_1'"))
    assert there == []


def test_another_place_for_the_history_is_refused_in_one_line_by_every_part(empty_databases):
    dsn = empty_databases[0]
    assert migrate([dsn]).returncode == 0
    elsewhere = ("--cassandra", "cassandra://127.0.0.1:1/history")
    for created, other, flags in (("mysql", "cassandra", elsewhere), ("cassandra", "mysql", ("--history", "mysql"))):
        asyncio.run(query(dsn, f"UPDATE fleet SET history = '{created}'"))
        for part in (["migrate"], ["engine"], ["api", "--port", str(free_port())]):
            refused = run(dsn, *part, *flags)
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused.stderr
            said = f"created with history {created}, now started with {other}; it is fixed for life\n"
            assert refused.stderr.endswith(said)


def test_no_shard_is_wrong_usage():
    answer = migrate([])
    assert answer.returncode == 2
    assert answer.stderr.startswith("secondzero: --shard: ")
