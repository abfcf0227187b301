"""How many cores, shards and hosts a load needs, from what one run costs (cost.json) and how full things may be.

    .venv/bin/python perf/capacity.py                                   the three cases below
    .venv/bin/python perf/capacity.py --average 800 --peak 50000 --within 2 --jobs 3e6

Executors fire a peak; MySQL plans it minutes before and takes its outcomes in the seconds after, so that only the
firing has to fit into the peak itself. Receivers, load balancers and replicas are not counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent

# How full a core may be: firing in the peak itself, and everything else on average.
FULL_IN_PEAK, FULL_ON_AVERAGE = 0.8, 0.5
# A shard: cores that MySQL makes use of for this work, and what its disk takes in a second.
SHARD_CORES, SHARD_BYTES_PER_S = 8, 400e6
# Beside redo log and binlog a page is written about twice (doublewrite), shared by some rows.
PAGE_BYTES_PER_RUN = 1_000
# Rows of a shard that stay quick to back up, to alter and to move.
SHARD_STORED_BYTES = 2e12
# A host for executors, one of them on each core.
HOST_CORES = 16
HELD_BYTES = 1_500
# A large second is planned over these minutes before, its outcomes are written in this time after.
PLANNED_S, SETTLED_S = 300, 10
DAY_S = 86_400


class Load(NamedTuple):
    """Runs a second on average; the largest peak: runs, and the seconds within which all are to start; stored jobs;
    and for how many days finished runs stay in MySQL (a history elsewhere takes them from there)."""

    name: str
    average: float
    peak: float
    within_s: float
    jobs: float
    days: float = 30


CASES = (
    Load("5,000/s on average, 300,000 at the hour within 5 s", 5_000, 300_000, 5, 20e6),
    Load("5,000/s on average, 1,000,000 at midnight within 5 s", 5_000, 1_000_000, 5, 20e6),
    Load("200 million jobs, each once a day, 1,000,000 of them at midnight", 200e6 / DAY_S, 1_000_000, 5, 200e6),
    Load("500,000/s, history in Cassandra", 500_000, 500_000, 1, 200e6, days=1),
)


class Need(NamedTuple):
    """What a load needs, with the reason that decides about each."""

    executor_cores: int
    hosts: int
    shards: int
    shards_because: str
    held_gb: float
    stored_tb: float
    parts: Mapping[str, float]


def need(load: Load, costs: Mapping[str, Any]) -> Need:
    """Every part is a number of cores or shards; the largest decides."""
    per_run, stored = costs["per_run"], costs["stored_bytes"]
    plan, fire, settle = (per_run[step] for step in ("plan, version known", "fire", "settle"))
    whole = [plan, fire, settle]
    executor_parts = {
        "cores to fire the peak": load.peak * fire["executor_us"] / 1e6 / load.within_s / FULL_IN_PEAK,
        "cores for the average": load.average * sum(step["executor_us"] for step in whole) / 1e6 / FULL_ON_AVERAGE,
    }
    mysqld_cores = {
        "average": load.average * sum(step["mysqld_us"] for step in whole) / 1e6,
        "planning the peak": load.peak * plan["mysqld_us"] / 1e6 / PLANNED_S,
        "settling the peak": load.peak * settle["mysqld_us"] / 1e6 / SETTLED_S,
    }
    written = load.average * (sum(step["redo"] + step["binlog"] for step in whole) + PAGE_BYTES_PER_RUN)
    stored_bytes = load.jobs * stored["job"] + load.average * DAY_S * load.days * stored["run"]
    busiest = max(
        mysqld_cores["average"] / FULL_ON_AVERAGE,
        (mysqld_cores["average"] + mysqld_cores["settling the peak"]) / FULL_IN_PEAK,
    )
    shard_parts = {
        "shards for CPU": busiest / SHARD_CORES,
        "shards for the disk's rate": written / SHARD_BYTES_PER_S / FULL_ON_AVERAGE,
        "shards for its size": stored_bytes / SHARD_STORED_BYTES,
    }
    cores = ceil(max(executor_parts.values()))
    because, shards = max(shard_parts.items(), key=lambda part: part[1])
    return Need(
        cores,
        max(2, ceil(cores / HOST_CORES)),  # one may be lost
        max(1, ceil(shards)),
        because.removeprefix("shards for "),
        load.peak * HELD_BYTES / 1e9,
        stored_bytes / 1e12,
        {**executor_parts, **{f"MySQL cores, {name}": cores for name, cores in mysqld_cores.items()}, **shard_parts},
    )


def lines(loads: Iterable[Load], costs: Mapping[str, Any]) -> Iterator[str]:
    """For people: what each load needs, and what was weighed."""
    for load in loads:
        needed = need(load, costs)
        yield f"{load.name}; {load.jobs:,.0f} jobs stored, runs kept {load.days:g} days in MySQL"
        yield f"  {needed.executor_cores} executor cores, on {needed.hosts} hosts of {HOST_CORES}"
        yield f"  {needed.shards} shards of {SHARD_CORES} cores: {needed.shards_because} decides"
        yield f"  {needed.held_gb:.1f} GB of memory for the peak's runs, {needed.stored_tb:.1f} TB on disk"
        yield from (f"    {name:32} {value:8.2f}" for name, value in needed.parts.items())
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--average", type=float, help="runs a second")
    parser.add_argument("--peak", type=float, default=0, help="runs in the largest second")
    parser.add_argument("--within", type=float, default=1, metavar="S", help="seconds in which all of them start (1)")
    parser.add_argument("--jobs", type=float, default=0, help="stored jobs")
    parser.add_argument("--days", type=float, default=30, help="that finished runs stay in MySQL (30)")
    parser.add_argument("--costs", type=Path, default=FOLDER / "cost.json", help="what perf/cost.py wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args()
    loads: Iterable[Load] = CASES
    if args.average is not None:
        name = f"{args.average:,.0f}/s on average, {args.peak:,.0f} within {args.within:g} s"
        loads = [Load(name, args.average, args.peak, args.within, args.jobs, args.days)]
    costs = json.loads(args.costs.read_text())
    if args.json:
        print(json.dumps({load.name: need(load, costs)._asdict() for load in loads}))
    else:
        print("\n".join(lines(loads, costs)))


if __name__ == "__main__":
    main()
