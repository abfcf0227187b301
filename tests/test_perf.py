"""The capacity plan, computed from costs that are easy to reckon with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).parent.parent / "perf"
STEP = {"executor_us": 20, "mysqld_us": 20, "redo": 300, "binlog": 100}
COSTS = {
    "per_run": {"plan, version known": STEP, "fire": STEP, "settle": STEP},
    "stored_bytes": {"job": 1_000, "run": 500},
}


@pytest.fixture
def capacity(tmp_path):
    (tmp_path / "cost.json").write_text(json.dumps(COSTS))

    def run(*arguments):
        command = [sys.executable, PERF / "capacity.py", "--costs", tmp_path / "cost.json", "--json", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return list(json.loads(answer.stdout).values())

    return run


def test_firing_a_peak_and_the_average_decide_about_executors(capacity):
    [peak] = capacity("--average", "0", "--peak", "400000", "--within", "2")
    assert peak["executor_cores"] == 5  # 400,000 × 20 µs in 2 s, each core four fifths full
    [average] = capacity("--average", "100000")
    assert average["executor_cores"] == 12  # 100,000 × 60 µs, each core half full
    assert average["hosts"] == 2


def test_cpu_or_the_disk_decides_about_shards(capacity):
    [busy] = capacity("--average", "200000", "--days", "0.01")
    assert (busy["shards"], busy["shards_because"]) == (3, "CPU")  # 200,000 × 60 µs, half full, 8 cores each
    [large] = capacity("--average", "10", "--jobs", "6e9")
    assert (large["shards"], large["shards_because"]) == (4, "its size")


def test_the_cases_of_the_plan_are_answered_from_the_measured_costs():
    answer = subprocess.run(
        [sys.executable, PERF / "capacity.py"], capture_output=True, text=True, timeout=60, check=True
    )
    for case in ("300,000 at the hour", "1,000,000 at midnight", "200 million jobs", "500,000/s"):
        assert case in answer.stdout
