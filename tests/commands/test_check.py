"""`secondzero check`, as it is typed."""

import json
import os
import subprocess
import sys


def check(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        [sys.executable, "-m", "engine", "check", *flags], capture_output=True, text=True, timeout=60, env=environ
    )


def test_good_settings_are_shown_with_where_they_come_from():
    answer = check("--port", "81", SECONDZERO_EXECUTORS="3")
    assert (answer.returncode, answer.stderr) == (0, "")
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert ["port", "81", "--port"] in rows
    assert ["executors", "3", "SECONDZERO_EXECUTORS"] in rows
    assert ["lease_ms", "10000", "default"] in rows


def test_every_problem_is_one_line_and_the_exit_status_is_2():
    answer = check("--port", "x", "--lease-ms", "1", "--heartbeat-ms", "0")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert len(answer.stderr.splitlines()) == 3
    assert all(line.startswith("secondzero: --") for line in answer.stderr.splitlines())


def test_json_is_one_object_either_way_and_holds_no_password():
    good = check("--json", "--shard", "mysql://me:hunter2@h/x", "--shard", "mysql://me:hunter2@h2/x")
    document = json.loads(good.stdout)
    assert document["ok"]
    assert document["settings"]["shard"] == ["mysql://me@h:3306/x", "mysql://me@h2:3306/x"]
    bad = check("--json", "--port", "x")
    assert bad.returncode == 2
    assert json.loads(bad.stdout)["problems"] == ["--port: must be a whole number from 0 to 65535, not 'x'"]


def test_an_unknown_flag_is_wrong_usage():
    answer = check("--prot", "1")
    assert answer.returncode == 2
    assert "--prot" in answer.stderr
