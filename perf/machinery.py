"""What leases, reaping and the keeper cost a backlog with no fault, with and without them in alternating pairs.

    .venv/bin/python perf/machinery.py [--pairs 5] [--runs 50000]

With: the settings as they come. Without: leases of an hour that nobody need renew, and a keeper that is stopped before
the backlog is there, so that nothing is reaped, swept, counted, cleared away or told. Fences stay: they are a part of
the very statements that settle a run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from typing import Any

from bench import sustained
from bench.world import World, world

BOUND = 0.10
UNATTENDED = {"lease_ms": 3_600_000, "heartbeat_ms": 1_700_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--runs", type=int, default=50_000)
    args = parser.parse_args()
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for number in range(2 * args.pairs):
        attended = number % 4 in (0, 3)
        found[attended].append(backlog(args.runs, attended))
        print(f"{'with' if attended else 'without'}: {json.dumps(found[attended][-1])}", flush=True)
    rate = _cost(*(1 / statistics.median(each["runs_per_s"] for each in found[attended]) for attended in (True, False)))
    cpu = _cost(*(statistics.median(_cpu_us(each) for each in found[attended]) for attended in (True, False)))
    print(json.dumps({"cost_of_rate": rate, "cost_of_cpu": cpu, "bound": BOUND, "held": max(rate, cpu) <= BOUND}))


def _cost(with_it: float, without: float) -> float:
    return round(with_it / without - 1, 3)


def _cpu_us(figures: dict[str, Any]) -> float:
    """Of mysqld and the executors for one run."""
    return float(figures["mysqld_us_per_run"] + figures["executor_us_per_run"])


def backlog(runs: int, attended: bool) -> dict[str, Any]:
    """The figures of one backlog, as `bench sustained` takes them."""
    settings: dict[str, Any] = {} if attended else UNATTENDED
    with world(_progress, log_level="debug", **settings) as here:
        sink = here.start_sink()
        here.start_engine()
        if not attended:
            _stop_keeper(here)
        return sustained.measure(here, sink, runs)


def _stop_keeper(here: World) -> None:
    """It is ended with the engine: what is stopped is killed once its time to drain is over."""
    for pid in here.engine_pids("keeper"):
        os.kill(pid, signal.SIGSTOP)


def _progress(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
