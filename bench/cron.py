"""The next time of everyday expressions in zones with clock changes: ours in one batch beside croniter one by one."""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Callable
from datetime import datetime
from itertools import product
from statistics import median
from zoneinfo import ZoneInfo

from engine._native.cron import compile_expression, next_times
from engine.clock import perf_ns
from engine.zones import zone

EXPRESSIONS = (
    *("* * * * *", "*/5 * * * *", "*/15 9-17 * * MON-FRI", "0 * * * *", "0 */6 * * *", "0 9 * * *", "30 2 * * *"),
    *("0 9 * * MON-FRI", "0 22 * * 1-5", "0 0 * * 0", "0 0 1 * *", "30 4 1,15 * *", "0 0 1 1 *", "0 8,12,18 * * *"),
)
ZONES = (
    *("America/New_York", "America/Sao_Paulo", "Europe/London", "Europe/Paris", "Africa/Cairo", "Asia/Jerusalem"),
    *("Australia/Sydney", "Australia/Lord_Howe"),
)
YEAR_2025_S, YEAR_2027_S = 1_735_689_600, 1_798_761_600
ROUNDS = 5
SEED = 2025


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=200_000, help="next times in our batch (default 200,000)")
    parser.add_argument("--croniter-times", type=int, default=2_000, help="next times of croniter (default 2,000)")


def run(args: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, float]:
    """Microseconds per next time, expressions compiled and croniter's objects made beforehand."""
    pairs = list(product(EXPRESSIONS, ZONES))
    progress(f"{args.times} next times of {len(EXPRESSIONS)} expressions in {len(ZONES)} zones, in one batch")
    native_us = median(_native_us(pairs, args.times) for _ in range(ROUNDS))
    progress(f"{args.croniter_times} of the same by croniter")
    croniter_us = median(_croniter_us(pairs, args.croniter_times) for _ in range(ROUNDS))
    return {"native_us": native_us, "croniter_us": croniter_us, "speedup": croniter_us / native_us}


def _native_us(pairs: list[tuple[str, str]], count: int) -> float:
    made = [(compile_expression(expression), zone(name)) for expression, name in pairs]
    drawn = random.Random(SEED)
    chosen = drawn.choices(made, k=count)
    crons, zones = [cron for cron, _ in chosen], [place for _, place in chosen]
    after = array("q", [drawn.randrange(YEAR_2025_S, YEAR_2027_S) for _ in range(count)])
    found = array("q", bytes(after.itemsize * count))
    begun_ns = perf_ns()
    next_times(crons, zones, after, found)
    return (perf_ns() - begun_ns) / 1000 / count


def _croniter_us(pairs: list[tuple[str, str]], count: int) -> float:
    from croniter import croniter  # only here: whoever measures something else need not have it

    made = [(croniter(expression), ZoneInfo(name)) for expression, name in pairs]
    drawn = random.Random(SEED)
    chosen = drawn.choices(made, k=count)
    after = [datetime.fromtimestamp(drawn.randrange(YEAR_2025_S, YEAR_2027_S), place) for _, place in chosen]
    begun_ns = perf_ns()
    for (cron, _), instant in zip(chosen, after, strict=True):
        cron.get_next(datetime, start_time=instant)
    return (perf_ns() - begun_ns) / 1000 / count
