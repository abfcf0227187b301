"""Events become sums, sums become the page that Prometheus reads."""

import ast
import itertools
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.events import Events
from engine.health import Board, Report
from engine.log import WORDING
from engine.metrics import BATCH_BOUNDS, LAG_BOUNDS_MS, Histogram, Metrics
from engine.metrics_page import metrics_page
from tests.support.clock import SettableClock

ROOT = Path(__file__).parent.parent
NOW_MS = 1_800_000_000_000
CLIENT = {"requests": 100, "opened": 8, "sent_again": 1, "connections": 8, "idle": 5}
EXECUTOR = {
    "held": 7, "ready": 3, "in_flight": 2, "unsettled": 1, "partitions": [32, 32], "clock_offset_ms": [0, -12],
    "client": CLIENT,
}  # fmt: skip


def told(*events):
    metrics, emitter = Metrics(), Events()
    emitter.subscribe(metrics)
    for name, fields in events:
        emitter.emit(name, **fields)
    return metrics


def page(*events):
    """Samples by (name, labels) of an executor and a keeper that were told the same."""
    clock, board = SettableClock(NOW_MS), Board(2)
    metrics = told(*events)
    board.write(0, {**Report("executor-0", clock, metrics).state([]), **EXECUTOR, "loop_age_ms": {"plan-0": 40}})
    board.write(1, {**Report("keeper", clock, told()).state([])})
    clock.advance(2_000)
    text = metrics_page(board, clock).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}


def settled(**lags_ms):
    lags = {int(priority[1:]): values for priority, values in lags_ms.items()}
    runs = sum(map(len, lags.values()))
    return "run.settled", {"runs": runs, "ends": {"succeeded.answered": runs}, "lags_ms": lags, "shard": 0}


def test_a_histogram_counts_up_to_its_bounds_inclusively():
    histogram = Histogram((10, 100))
    histogram.add([0, 10, 11, 100, 101, 5_000])
    assert (histogram.counts, histogram.total) == ([2, 2, 2], 5_222)


def test_lag_stands_in_seconds_for_each_priority():
    found = page(settled(p0=[3, 5], p2=[70, 1_300_000]), settled(p0=[6]))
    process, name = ("process", "executor-0"), "secondzero_run_lag_seconds"
    critical, normal = ("priority", "critical"), ("priority", "normal")
    assert found[f"{name}_bucket", ("le", "0.005"), critical, process] == 2
    assert found[f"{name}_bucket", ("le", "0.01"), critical, process] == 3
    assert found[f"{name}_bucket", ("le", "1200.0"), normal, process] == 1
    assert found[f"{name}_bucket", ("le", "+Inf"), normal, process] == 2
    assert found[f"{name}_sum", critical, process] == pytest.approx(0.014)
    assert found[f"{name}_count", normal, process] == 2


def test_attempts_batches_and_statements_are_summed_up():
    found = page(
        settled(p2=[1] * 40),
        ("run.planned", {"runs": 1_000, "jobs": 1_000, "shard": 0}),
        ("run.settled", {"runs": 2, "ends": {"waiting.timeout": 2}, "lags_ms": {}, "shard": 0}),
        ("statement.ended", {"statement": "insert_runs", "us": 1_500, "shard": 0}),
        ("statement.ended", {"statement": "insert_runs", "us": 500, "shard": 1}),
        ("lease.lost", {"shard": 0, "partitions": 32}),
    )
    process = ("process", "executor-0")
    attempts = "secondzero_attempts_total"
    assert found[attempts, ("outcome", "answered"), process, ("state", "succeeded")] == 40
    assert found[attempts, ("outcome", "timeout"), process, ("state", "waiting")] == 2
    assert found["secondzero_batch_runs_bucket", ("le", "100.0"), process, ("step", "settle")] == 2
    assert found["secondzero_batch_runs_sum", process, ("step", "plan")] == 1_000
    assert found["secondzero_statement_seconds_sum", process, ("statement", "insert_runs")] == pytest.approx(0.002)
    assert found["secondzero_statement_seconds_count", process, ("statement", "insert_runs")] == 2
    assert found["secondzero_lease_losses_total", process] == 1
    assert found["secondzero_events_total", ("event", "run.settled"), process] == 2


def test_the_present_of_every_process_is_there():
    found = page(("backlog.seen", {"shard": 1, "age_ms": 2_500, "ahead_ms": None}))
    process = ("process", "executor-0")
    assert found["secondzero_runs_held", process] == 7
    assert found["secondzero_runs_in_flight", process] == 2
    assert found["secondzero_backlog_age_seconds", ("shard", "1")] == 2.5
    assert ("secondzero_planned_ahead_seconds", ("shard", "1")) not in found
    assert found["secondzero_clock_offset_seconds", process, ("shard", "1")] == pytest.approx(-0.012)
    assert found["secondzero_requests_total", process] == 100
    assert found["secondzero_connections", process, ("state", "busy")] == 3
    assert found["secondzero_stage_last_loop_age_seconds", process, ("stage", "plan-0")] == pytest.approx(2.04)
    assert found["secondzero_process_resident_memory_bytes", ("process", "keeper")] > 1_000_000
    assert [name for name, *labels in found if name == "secondzero_tzdata_info" and labels[0][1] >= "2026"]


def test_bounds_reach_from_5_ms_to_20_minutes_and_grow():
    assert (LAG_BOUNDS_MS[0], LAG_BOUNDS_MS[-1]) == (5, 20 * 60 * 1000)
    for bounds in (LAG_BOUNDS_MS, BATCH_BOUNDS):
        assert all(low < high for low, high in itertools.pairwise(bounds))


def test_function_runs_are_counted_that_end_without_their_workers():
    found = page(("work.lapsed", {"runs": 3}), ("work.unclaimed", {"runs": 2}), ("work.lapsed", {"runs": 4}))
    process = ("process", "executor-0")
    assert (found["secondzero_work_lapsed_total", process], found["secondzero_work_unclaimed_total", process]) == (7, 2)


def test_a_full_page_fits_its_slot():
    """As many statements, events and stages as there are, with sums of a year."""
    metrics = told(*(settled(**{f"p{priority}": [10**6]}) for priority in range(4)))
    for number in range(150):
        metrics("statement.ended", {"statement": f"a_statement_with_a_long_name_{number}", "us": 10**15})
    for name in WORDING:
        metrics._events[name] = 10**12
    state = Report("executor-0", SettableClock(NOW_MS), metrics).state([])
    Board(1).write(0, {**state, **EXECUTOR, "partitions": [32] * 64, "clock_offset_ms": [-1_000] * 64})


def emitted():
    """Every name that the product emits, and where."""
    for path in [*ROOT.glob("engine/**/*.py"), *ROOT.glob("api/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "emit":
                yield ast.literal_eval(node.args[0]), path.relative_to(ROOT)


def test_every_event_has_its_wording_and_every_wording_its_event():
    names = dict(emitted())
    assert {name: where for name, where in names.items() if name not in WORDING} == {}
    assert WORDING.keys() - names.keys() == set()


def test_a_process_that_is_behind_is_known_to_its_neighbours_for_a_while():
    board = Board(3)
    assert not board.any_busy(1_000)
    board.tell_busy(1, 5_000)
    assert board.any_busy(5_000)
    assert not board.any_busy(5_001)
