"""The page /metrics: what every process of this host wrote onto the board, as Prometheus reads it.

Each series names its process, so that one that starts again from nothing is a reset and not a fall of a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from engine.clock import Clock
from engine.health import Board
from engine.metrics import BATCH_BOUNDS, LAG_BOUNDS_MS
from engine.model import Priority
from engine.zones import TZDATA_VERSION

State = Mapping[str, Any]

# Gauges of an executor: name, key on the board, help.
_RUNS = (
    ("held", "held", "Claimed runs in memory, from being planned to being settled."),
    ("ready", "ready", "Due runs that wait for their turn or for a place in flight."),
    ("in_flight", "in_flight", "Calls that have begun and not ended."),
    ("unsettled", "unsettled", "Outcomes that are not yet in MySQL."),
)
_CLIENT = (
    ("requests", "requests", "Requests sent."),
    ("connections_opened", "opened", "Connections opened; what requests exceed them by was sent on one in use."),
    ("requests_sent_again", "sent_again", "Requests that met a closing connection and were sent again at once."),
)


def metrics_page(board: Board, clock: Clock) -> bytes:
    """In the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfBoard(board, clock.now_ms()))
    return generate_latest(registry)


class _OfBoard(Collector):
    def __init__(self, board: Board, now_ms: int) -> None:
        self._states = [state for state in board.read() if state]
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        executors = [state for state in self._states if "held" in state]
        yield InfoMetricFamily("secondzero_tzdata", "The time zones in use.", value={"version": TZDATA_VERSION})
        yield from self._processes()
        yield from _runs(executors)
        yield from _lag_and_attempts(executors)
        yield from _owned(executors)
        yield from _client(executors)
        yield _batches(executors)
        yield from _backlog(self._states)
        yield from _work(self._states)
        yield from _record(self._states)
        yield from _work_ended(self._states)
        yield from _events(self._states)
        yield _statements(self._states)
        yield self._loops()

    def _processes(self) -> Iterator[Metric]:
        started = GaugeMetricFamily(
            "secondzero_process_start_time_seconds", "When the process started, since the epoch.", labels=["process"]
        )
        cpu = CounterMetricFamily("secondzero_process_cpu_seconds", "CPU time used.", labels=["process"])
        memory = GaugeMetricFamily("secondzero_process_resident_memory_bytes", "Memory in use.", labels=["process"])
        for state in self._states:
            started.add_metric([state["process"]], state["started_at_ms"] / 1000)
            cpu.add_metric([state["process"]], state["cpu_ms"] / 1000)
            memory.add_metric([state["process"]], state["resident_bytes"])
        yield from (started, cpu, memory)

    def _loops(self) -> Metric:
        ages = GaugeMetricFamily(
            "secondzero_stage_last_loop_age_seconds",
            "Time since the last round of a stage that ended well.",
            labels=["process", "stage"],
        )
        for state in self._states:
            for stage, age_ms in state["loop_age_ms"].items():
                ages.add_metric([state["process"], stage], (age_ms + self._now_ms - state["at_ms"]) / 1000)
        return ages


def _runs(executors: Iterable[State]) -> Iterator[Metric]:
    for name, key, text in _RUNS:
        gauge = GaugeMetricFamily(f"secondzero_runs_{name}", text, labels=["process"])
        for state in executors:
            gauge.add_metric([state["process"]], state[key])
        yield gauge


def _lag_and_attempts(executors: Iterable[State]) -> Iterator[Metric]:
    lags = HistogramMetricFamily(
        "secondzero_run_lag_seconds",
        "From when an attempt was due to when its call began.",
        labels=["process", "priority"],
    )
    attempts = CounterMetricFamily(
        "secondzero_attempts",
        "Attempts that ended, by the state they left their run in and by how the call ended.",
        labels=["process", "state", "outcome"],
    )
    bounds = [_seconds(bound) for bound in LAG_BOUNDS_MS]
    for state in executors:
        for priority, counts in state["metrics"]["lags_ms"].items():
            labels = [state["process"], Priority(int(priority)).name.lower()]
            lags.add_metric(labels, _buckets(bounds, counts), counts[-1] / 1000)
        for end, number in state["metrics"]["attempts"].items():
            attempts.add_metric([state["process"], *end.split(".")], number)
    yield from (lags, attempts)


def _owned(executors: Iterable[State]) -> Iterator[Metric]:
    labels = ["process", "shard"]
    owned = GaugeMetricFamily("secondzero_partitions_owned", "Partitions this process plans for.", labels=labels)
    offset = GaugeMetricFamily(
        "secondzero_clock_offset_seconds",
        "The shard's clock less this host's, as of the last heartbeat.",
        labels=labels,
    )
    for state in executors:
        for shard, number in enumerate(state["partitions"]):
            owned.add_metric([state["process"], str(shard)], number)
        for shard, offset_ms in enumerate(state["clock_offset_ms"]):
            offset.add_metric([state["process"], str(shard)], offset_ms / 1000)
    yield from (owned, offset)


def _client(executors: Iterable[State]) -> Iterator[Metric]:
    for name, key, text in _CLIENT:
        counter = CounterMetricFamily(f"secondzero_{name}", text, labels=["process"])
        for state in executors:
            counter.add_metric([state["process"]], state["client"][key])
        yield counter
    connections = GaugeMetricFamily("secondzero_connections", "Connections to endpoints.", labels=["process", "state"])
    for state in executors:
        idle, total = state["client"]["idle"], state["client"]["connections"]
        connections.add_metric([state["process"], "idle"], idle)
        connections.add_metric([state["process"], "busy"], total - idle)
    yield connections


def _batches(executors: Iterable[State]) -> Metric:
    batches = HistogramMetricFamily("secondzero_batch_runs", "Runs in one batch of a step.", labels=["process", "step"])
    bounds = [str(float(bound)) for bound in BATCH_BOUNDS]
    for state in executors:
        for step, counts in state["metrics"]["batches"].items():
            batches.add_metric([state["process"], step], _buckets(bounds, counts), counts[-1])
    return batches


def _backlog(states: Iterable[State]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "secondzero_backlog_age_seconds", "How long the oldest due run has waited for a worker.", labels=["shard"]
    )
    ahead = GaugeMetricFamily(
        "secondzero_planned_ahead_seconds", "How far away the first time is that is not planned yet.", labels=["shard"]
    )
    for state in states:
        for shard, seen in state["metrics"]["backlog"].items():
            age.add_metric([shard], seen["age_ms"] / 1000)
            if seen["ahead_ms"] is not None:
                ahead.add_metric([shard], seen["ahead_ms"] / 1000)
    yield from (age, ahead)


def _work(states: Iterable[State]) -> Iterator[Metric]:
    """Function runs; a door is a process of the API, which has no page of its own."""
    ready = GaugeMetricFamily("secondzero_work_ready", "Due function runs that no worker has.", labels=["shard"])
    age = GaugeMetricFamily("secondzero_work_age_seconds", "How long the oldest of them has waited.", labels=["shard"])
    waiting = GaugeMetricFamily("secondzero_work_waiting", "Workers that wait for work.", labels=["shard", "door"])
    sums = [
        CounterMetricFamily(f"secondzero_work_{name}", text, labels=["shard", "door"])
        for name, text in (
            ("claimed", "Function runs given to workers."),
            ("ended", "Function runs that workers have ended or given back."),
            ("stale", "Words of workers about runs that they had lost."),
        )
    ]
    for state in states:
        for shard, seen in state["metrics"]["work"].items():
            ready.add_metric([shard], seen["ready"])
            age.add_metric([shard], seen["age_ms"] / 1000)
            for door, (*counts, waits) in seen["doors"].items():
                waiting.add_metric([shard, door], waits)
                for family, number in zip(sums, counts, strict=True):
                    family.add_metric([shard, door], number)
    yield from (ready, age, waiting, *sums)


def _record(states: Iterable[State]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "secondzero_record_backlog_age_seconds",
        "How long the oldest day in MySQL could have left it, with history in Cassandra.",
        labels=["shard"],
    )
    runs = GaugeMetricFamily(
        "secondzero_record_backlog_runs", "About how many runs could have left MySQL for Cassandra.", labels=["shard"]
    )
    for state in states:
        for shard, seen in state["metrics"]["record"].items():
            age.add_metric([shard], seen["age_ms"] / 1000)
            runs.add_metric([shard], seen["runs"])
    yield from (age, runs)


def _work_ended(states: Iterable[State]) -> Iterator[Metric]:
    """By keepers, not by workers."""
    for name, text in (
        ("lapsed", "Function runs taken back from silent workers, at cancels and at the ends of their time."),
        ("unclaimed", "Function runs ended that no worker had: of disabled tenants, and over max_age."),
    ):
        family = CounterMetricFamily(f"secondzero_work_{name}", text, labels=["process"])
        for state in states:
            family.add_metric([state["process"]], state["metrics"]["work_ended"].get(name, 0))
        yield family


def _events(states: Iterable[State]) -> Iterator[Metric]:
    events = CounterMetricFamily("secondzero_events", "Events by name, as in the log.", labels=["process", "event"])
    losses = CounterMetricFamily("secondzero_lease_losses", "Leases lost by silence.", labels=["process"])
    for state in states:
        for name, number in state["metrics"]["events"].items():
            events.add_metric([state["process"], name], number)
        losses.add_metric([state["process"]], state["metrics"]["events"].get("lease.lost", 0))
    yield from (events, losses)


def _statements(states: Iterable[State]) -> Metric:
    statements = SummaryMetricFamily(
        "secondzero_statement_seconds", "From a statement's sending to its answer.", labels=["process", "statement"]
    )
    for state in states:
        for name, (number, spent_us) in state["metrics"]["statements"].items():
            statements.add_metric([state["process"], name], number, spent_us / 1_000_000)
    return statements


def _buckets(bounds: Sequence[str], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus counts everything up to a bound; ours are counts between bounds, and a sum behind them."""
    return list(zip([*bounds, "+Inf"], map(float, accumulate(counts[:-1])), strict=True))


def _seconds(milliseconds: int) -> str:
    return str(milliseconds / 1000)
