"""`secondzero keys`, as it is typed: a rotation by one command, and a key that is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.__main__ import main
from engine.keys import KEY_PREFIX, make_key_file
from tests.support.api import CRON_JOB, ApiServer, served
from tests.support.mysql import SchemaPool


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "secrets.key")
    return tmp_path / "secrets.key"


@pytest.fixture
def server(schema_pool: SchemaPool, key_file: Path) -> Iterator[ApiServer]:
    with (
        schema_pool.schema() as first,
        schema_pool.schema(first=False) as second,
        served([first, second], secrets_key_file=key_file) as server,
    ):
        yield server


def types(capsys: pytest.CaptureFixture[str], server: ApiServer, key_file: Path, *words: str) -> Any:
    """What a command reports; it must succeed."""
    capsys.readouterr()
    shards = [word for dsn in server.dsns for word in ("--shard", dsn.text())]
    assert main([*words, *shards, "--secrets-key-file", str(key_file), "--json"]) == 0
    return orjson.loads(capsys.readouterr().out)


def test_p9_keys_are_replaced_by_one_command_while_the_service_runs(
    capsys: pytest.CaptureFixture[str], server: ApiServer, key_file: Path
) -> None:
    created = types(capsys, server, key_file, "tenant", "create", "acme")
    tenant = server.tenant_of(*(line for line in key_file.read_text().splitlines() if line.startswith(KEY_PREFIX)))
    tenant.key = created["api_key"]
    secret = CRON_JOB | {"target": {"http": {"url": "https://example.com/", "headers": {"Cookie": "hunter2"}}}}
    names = [f"job-{number}" for number in range(10)]
    assert {tenant.put(name, secret).status for name in names} == {201}
    (old,) = types(capsys, server, key_file, "keys", "list")["keys"]
    assert (old["here"], old["seals"], old["used_since"] is not None) == (True, True, True)
    before = [tenant.job(name) for name in names]

    rotated = types(capsys, server, key_file, "keys", "rotate", "--new-key")
    assert rotated["encrypted_again"] >= len(names) + 1
    assert rotated["key_id"] != old["key_id"]
    assert types(capsys, server, key_file, "keys", "rotate")["encrypted_again"] == 0
    listed = types(capsys, server, key_file, "keys", "list")["keys"]
    assert [(key["key_id"], key["seals"], key["used_since"] is None) for key in listed] == [
        (rotated["key_id"], True, False),
        (old["key_id"], False, True),
    ]
    assert [tenant.job(name) for name in names] == before, "the service that runs has seen the new key by itself"
    assert tenant.put("job-0", secret).json["version"] == 1
    assert tenant.get("/v1/signing-secrets").json["signing_secrets"][0]["secret"] == created["signing_secret"]
    key_ids = {row[0] for row in server.rows("SELECT DISTINCT key_id FROM job_versions")}
    assert key_ids == {rotated["key_id"]}


def test_p9_a_lost_key_is_one_line_at_the_start_of_every_part(server: ApiServer, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    make_key_file(other)
    shards = [word for dsn in server.dsns for word in ("--shard", dsn.text())]
    for words in (["api", "--port", "0"], ["engine"], ["migrate"], ["tenant", "create", "late"]):
        command = [sys.executable, "-m", "engine", *words, *shards, "--secrets-key-file", str(other)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SECONDZERO_")}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
        assert ended.returncode == 1, (words, ended)
        (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
        assert "this fleet's secrets are encrypted with key" in line
        assert str(other) in line


def test_p9_a_new_key_is_printed_and_another_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["keys", "create"]) for _ in range(2)] == [0, 0]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(KEY_PREFIX)
    assert first != second
