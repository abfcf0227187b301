"""The folder of what runs on this machine: one `up` at a time, found by the other commands, counts fixed for life."""

import os
import stat
import subprocess
import sys

import pytest

from engine.config import Dsn
from engine.errors import OperatorError
from engine.local.folder import LocalService, announced, held, local_history, local_service, local_shard_count

SERVICE = LocalService(
    (Dsn.parse("mysql://me:hunter2@h/x"), Dsn("root", "", "localhost", 0, "x", "/a b/mysqld.sock")),
    "http://127.0.0.1:1",
    "http://127.0.0.1:2",
)


def in_another_process(data, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code that has ``data``, ``held``, ``local_service``; an OperatorError becomes exit status 1."""
    program = (
        "import sys; from pathlib import Path\nfrom engine.errors import OperatorError\n"
        "from engine.local.folder import held, local_service\n"
        f"data = Path({str(data)!r})\ntry:\n    {code}\nexcept OperatorError as error:\n    sys.exit(str(error))\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_second_up_on_the_same_folder_is_refused_in_one_line(tmp_path):
    with held(tmp_path):
        second = in_another_process(tmp_path, "held(data).__enter__()")
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        f"{tmp_path} is in use by another `secondzero up` (process {os.getpid()}): stop that one first,"
        " or give another --data"
    ]
    assert in_another_process(tmp_path, "held(data).__enter__()").returncode == 0


def test_other_commands_find_what_runs_and_only_its_owner_can_read_where(tmp_path):
    with held(tmp_path), announced(tmp_path, SERVICE):
        file = tmp_path / "secondzero.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        found = in_another_process(tmp_path, "print(local_service(data).shards[0].text(), local_service(data).api)")
        assert found.stdout.split() == ["mysql://me:hunter2@h:3306/x", SERVICE.api]
        still_held = in_another_process(tmp_path, "held(data).__enter__()")
        assert still_held.returncode == 1
    assert not file.exists()


@pytest.mark.parametrize("left", [None, "secondzero.json"])
def test_where_nothing_runs_that_is_said_even_if_a_killed_up_left_its_file(tmp_path, left):
    data = tmp_path / "data"
    if left:
        with held(data):
            (data / left).write_text("{}")
    with pytest.raises(OperatorError, match=f"nothing runs in {data}: start it with `secondzero up --data {data}`"):
        local_service(data)


def test_the_shard_count_is_fixed_by_the_first_start(tmp_path):
    assert local_shard_count(tmp_path, 3) == 3
    assert local_shard_count(tmp_path, None) == 3
    assert local_shard_count(tmp_path, 3) == 3
    with pytest.raises(OperatorError, match="created with shard count 3, now started with 2; it is fixed for life"):
        local_shard_count(tmp_path, 2)


@pytest.mark.parametrize(("first", "other"), [(None, "cassandra"), ("mysql", "cassandra"), ("cassandra", "mysql")])
def test_where_the_history_is_is_fixed_by_the_first_start(tmp_path, first, other):
    created = local_history(tmp_path, first)
    local_shard_count(tmp_path, 1, created)
    assert local_history(tmp_path, None) == local_history(tmp_path, created) == created == (first or "mysql")
    refused = f"created with history {created}, now started with {other}; it is fixed for life"
    with pytest.raises(OperatorError, match=refused):
        local_history(tmp_path, other)


def test_a_new_folder_gets_two_shards_and_is_closed_to_others(tmp_path):
    data = tmp_path / "deep" / "data"
    with held(data):
        assert local_shard_count(data, None) == 2
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_file_that_was_spoiled_is_an_error_in_one_line(tmp_path):
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(OperatorError, match=r"fleet.json is not what `secondzero up` wrote"):
        local_shard_count(tmp_path, None)
