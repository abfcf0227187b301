"""Whole-system benches, as they are typed, with loads too small to mean anything."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

KEYS = {"runs", "lost", "duplicates", "early", "lag_p50_ms", "lag_p99_ms", "lag_max_ms"}


def measured(*arguments: str) -> dict[str, object]:
    answer = subprocess.run(
        [sys.executable, "-m", "engine", "bench", *arguments, "--json"], capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_peak_is_counted_at_the_receiver_and_loses_doubles_and_hurries_nothing(tmp_path):
    chart = tmp_path / "chart.svg"
    found = measured("peak", "--runs", "200", "--critical", "20", "--ahead", "4", "--alone", "--chart", str(chart))
    assert found.keys() >= KEYS
    assert (found["runs"], found["lost"], found["duplicates"], found["early"]) == (200, 0, 0, 0)
    per_priority = found["per_priority"]
    assert {name: figures["runs"] for name, figures in per_priority.items()} == {"critical": 20, "normal": 180}
    assert all(figures.keys() == KEYS for figures in per_priority.values())
    assert ET.parse(chart).getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_a_backlog_is_planned_fired_and_settled_whole():
    found = measured("sustained", "--runs", "500", "--alone")
    assert found.keys() >= {"runs_per_s", "lost", "duplicates", "mysqld_us_per_run", "executor_us_per_run"}
    assert (found["runs"], found["lost"], found["duplicates"]) == (500, 0, 0)


def test_planning_is_measured_beside_planning_one_by_one():
    found = measured("plan", "--runs", "500")
    assert found["runs_per_s"] > found["one_by_one_runs_per_s"] > 0
    assert found["mysqld_us_per_run"] > 0


def test_more_critical_runs_than_runs_are_refused():
    answer = subprocess.run(
        [sys.executable, "-m", "engine", "bench", "peak", "--runs", "5", "--critical", "6"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stderr) == (1, "secondzero: --critical 6 is more than --runs 5\n")


@pytest.mark.parametrize("benchmark", ["plan", "sustained", "peak", "rest"])
def test_every_bench_has_its_help(benchmark):
    answer = subprocess.run(
        [sys.executable, "-m", "engine", "bench", benchmark, "--help"], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0
