"""`secondzero bench`, as it is typed, with loads too small to mean anything."""

import json
import subprocess
import sys

import pytest

from engine.commands.bench import BENCHMARKS, figure, table

SMALL = {
    "cron": ("--times", "1000", "--croniter-times", "10"),
    "wheel": ("--timers", "4000", "--waiting", "2000", "--rounds", "1"),
    "batch": ("--rows", "4000", "--rounds", "1"),
}
FIGURES = {
    "cron": {"native_us", "croniter_us", "speedup"},
    "wheel": {"ops_per_s", "heapq_ops_per_s", "speedup"},
    "batch": {"rows_per_s", "fstring_rows_per_s", "speedup"},
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", "bench", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", SMALL)
def test_json_is_one_object_and_nothing_else(name):
    answer = bench(name, "--json", *SMALL[name])
    assert answer.returncode == 0
    measured = json.loads(answer.stdout)
    assert set(measured) == FIGURES[name]
    assert all(value > 0 for value in measured.values())
    assert answer.stderr


def test_for_people_it_is_a_table():
    answer = bench("batch", *SMALL["batch"])
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["rows_per_s", "fstring_rows_per_s", "speedup"]


def test_an_unknown_benchmark_is_wrong_usage():
    answer = bench("nothing")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert all(name in answer.stderr for name in BENCHMARKS)


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_things_is_at_least_one(number):
    answer = bench("wheel", "--timers", number)
    assert answer.returncode == 2
    assert f"argument --timers: must be a whole number of at least 1, not '{number}'" in answer.stderr


def test_what_is_missing_to_compare_with_is_named_in_one_line():
    without = "import sys; sys.modules['croniter'] = None; from engine.__main__ import main; sys.exit(main())"
    answer = subprocess.run(
        [sys.executable, "-c", without, "bench", "cron", *SMALL["cron"]], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.splitlines()[-1].endswith("croniter is not installed: pip install 'secondzero[bench]'")


def test_figures_stand_in_columns():
    assert table({"runs": 1000, "lag_p99_ms": 12.345, "best": "ours"}) == (
        "runs        1,000\nlag_p99_ms   12.3\nbest         ours"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1234567, "1,234,567"), (1234567.8, "1,234,568"), (99.94, "99.9"), (3.14159, "3.14"), (0.0, "0")],
)
def test_a_figure_shows_no_digits_that_are_noise(value, shown):
    assert figure(value) == shown
