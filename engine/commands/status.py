"""`secondzero status`: workers, partitions, lag per priority, backlog, and the next minutes second by second."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from engine.commands.brakes import document as brake_document
from engine.config import Settings
from engine.local.folder import shards_of
from engine.model import Priority
from engine.rules.brakes import BrakeKind
from engine.rules.lag import percentile
from engine.settings import load_settings, settings_arguments
from engine.store.brakes import Brake
from engine.store.shard import Shard
from engine.store.status import Status, WorkerStatus, read_status

AHEAD_MS = 300_000
MINUTE_MS = 60_000
BARS = " ▁▂▃▄▅▆▇█"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "status",
        help="what the fleet is doing: workers, lag, backlog, the next minutes",
        description="Reads the shards, of what runs in a folder or of given addresses, and changes nothing.",
        allow_abbrev=False,
    )
    settings_arguments(parser, {"shards", "data"})
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    status = asyncio.run(_read(load_settings(args)))
    if args.json:
        print(orjson.dumps(document(status)).decode())
    else:
        print("\n".join(lines(status)))
    return 0


async def _read(settings: Settings) -> Status:
    shards = [Shard(dsn, index) for index, dsn in enumerate(shards_of(settings))]
    try:
        return await read_status(shards, AHEAD_MS)
    finally:
        for shard in shards:
            await shard.close()


def document(status: Status) -> dict[str, Any]:
    """The same as JSON: only seconds that have runs, and only priorities that had any."""
    return {
        "at": _time(status.at_ms),
        "partitions": {"total": status.partitions, "owned": status.partitions_owned},
        "brakes": [brake_document(brake) for brake in status.brakes],
        "workers": [_worker_document(worker) for worker in _sorted_workers(status)],
        "lag": {priority.name.lower(): _lag_document(lags) for priority, lags in sorted(status.lags.items())},
        "backlog": {
            "unplanned": status.unplanned,
            "waiting": status.waiting,
            "in_flight": status.in_flight,
            "held": status.held,
            "oldest_s": _oldest_s(status),
        },
        "next_complete": status.complete,
        "next": [{"at": _time(second_ms), "runs": runs} for second_ms, runs in sorted(status.coming.items())],
    }


def lines(status: Status) -> Iterator[str]:
    """The report for people."""
    for brake in status.brakes:
        yield f"stopped     {_brake(brake)}"
    yield f"partitions  {status.partitions_owned} of {status.partitions} owned"
    yield from _worker_lines(status)
    yield from _lag_lines(status)
    yield (
        f"backlog     {status.unplanned:,} unplanned · {status.waiting:,} waiting · {status.in_flight:,} in flight"
        f" · {status.held:,} held by limits"
        f" · oldest {_oldest_s(status)} s"
    )
    yield from _coming_lines(status)


def _brake(brake: Brake) -> str:
    what = f"{BrakeKind(brake.kind).name.lower()} {brake.what}".rstrip()
    why = f": {brake.note}" if brake.note else ""
    return f"{what}, since {_time(brake.pulled_at_ms)} by {brake.pulled_by}{why}"


def _worker_lines(status: Status) -> Iterator[str]:
    yield f"\n{'worker on':20} {'pid':>8}  {'state':8} {'partitions':>10}  heartbeat"
    for worker in _sorted_workers(status):
        yield (
            f"{_host(worker):20} {worker.pid:>8}  {_state(worker):8} {worker.partitions:>10}"
            f"  {worker.heartbeat_age_ms / 1000:.1f} s ago"
        )


def _lag_lines(status: Status) -> Iterator[str]:
    yield f"\n{'lag, last minute':16}  {'runs':>9} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}"
    for priority in Priority:
        lag = _lag_document(status.lags.get(priority, Counter()))
        row = " ".join(f"{value:>9,}" if lag["runs"] else f"{'-':>9}" for value in lag.values())
        yield f"{priority.name.lower():16}  {row}"
    yield ""


def _coming_lines(status: Status) -> Iterator[str]:
    """A row for each minute, a sign for each second; the highest bar is the largest second."""
    most = max(status.coming.values(), default=0)
    runs = sum(status.coming.values())
    counted = "" if status.complete else " (of each job only its next time)"
    yield f"\nnext {AHEAD_MS // MINUTE_MS} minutes, a sign a second{counted}: {_runs(runs)}, {_largest(status)}"
    first_ms = status.at_ms - status.at_ms % MINUTE_MS
    for minute_ms in range(first_ms, status.at_ms + AHEAD_MS, MINUTE_MS):
        seconds = range(minute_ms, minute_ms + MINUTE_MS, 1000)
        yield f"{_time(minute_ms)[11:16]} |{''.join(_bar(status.coming[second], most) for second in seconds)}|"


def _largest(status: Status) -> str:
    if not status.coming:
        return "none planned"
    second_ms, runs = max(status.coming.items(), key=lambda item: item[1])
    return f"at most {runs:,} at {_time(second_ms)[11:19]}"


def _runs(number: int) -> str:
    return f"{number:,} run{'' if number == 1 else 's'}"


def _bar(runs: int, most: int) -> str:
    """Whatever has runs is seen: its bar is never the empty one."""
    return BARS[-(-runs * (len(BARS) - 1) // most)] if runs else BARS[0]


def _worker_document(worker: WorkerStatus) -> dict[str, Any]:
    return {
        "host": _host(worker),
        "pid": worker.pid,
        "state": _state(worker),
        "started_at": _time(worker.started_at_ms),
        "heartbeat_age_ms": worker.heartbeat_age_ms,
        "partitions": worker.partitions,
    }


def _lag_document(lags: Mapping[int, int]) -> dict[str, int]:
    percentiles = {
        name: percentile(lags, percent) for name, percent in (("p50_ms", 50), ("p99_ms", 99), ("max_ms", 100))
    }
    return {"runs": sum(lags.values()), **percentiles}


def _sorted_workers(status: Status) -> list[WorkerStatus]:
    return sorted(status.workers.values(), key=lambda worker: (not worker.live, worker.started_at_ms, worker.pid))


def _state(worker: WorkerStatus) -> str:
    if not worker.live:
        return "silent"
    return "draining" if worker.draining else "live"


def _host(worker: WorkerStatus) -> str:
    return worker.host.partition("/")[0]


def _oldest_s(status: Status) -> float:
    return 0.0 if status.oldest_at_ms is None else round(max(0, status.at_ms - status.oldest_at_ms) / 1000, 1)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
