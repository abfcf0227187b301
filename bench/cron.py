"""The next time of everyday expressions in zones with clock changes: ours in one batch beside croniter one by one."""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Callable
from datetime import datetime
from itertools import product
from typing import NamedTuple
from zoneinfo import ZoneInfo

from bench.rounds import Progress, count, median_s
from engine._native.cron import compile_expression, next_times
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
SEED = 2025


class Question(NamedTuple):
    """The first time of an expression in a zone after an instant."""

    expression: str
    zone: str
    after_s: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=count, default=500_000, metavar="N", help="ours in a round (500,000)")
    parser.add_argument("--croniter-times", type=count, default=2_000, metavar="N", help="croniter's (2,000)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="the median counts (5)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, float]:
    """Microseconds for each time; expressions are compiled and croniter's objects made beforehand."""
    ours, theirs = by_native(questions(args.times)), by_croniter(questions(args.croniter_times))
    spent_s = median_s(args.rounds, progress, native=ours, croniter=theirs)
    native_us = spent_s["native"] * 1e6 / args.times
    croniter_us = spent_s["croniter"] * 1e6 / args.croniter_times
    return {"native_us": native_us, "croniter_us": croniter_us, "speedup": croniter_us / native_us}


def questions(times: int) -> list[Question]:
    draw = random.Random(SEED)
    pairs = draw.choices(list(product(EXPRESSIONS, ZONES)), k=times)
    return [Question(expression, zone, draw.randrange(YEAR_2025_S, YEAR_2027_S)) for expression, zone in pairs]


def by_native(asked: list[Question]) -> Callable[[], object]:
    compiled = {expression: compile_expression(expression) for expression in EXPRESSIONS}
    crons, zones = [compiled[q.expression] for q in asked], [zone(q.zone) for q in asked]
    after = array("q", [q.after_s for q in asked])
    found = array("q", bytes(after.itemsize * len(asked)))
    return lambda: next_times(crons, zones, after, found)


def by_croniter(asked: list[Question]) -> Callable[[], object]:
    from croniter import croniter  # only here: whoever measures something else need not have it

    made = {expression: croniter(expression) for expression in EXPRESSIONS}
    ready = [(made[q.expression], datetime.fromtimestamp(q.after_s, ZoneInfo(q.zone))) for q in asked]
    return lambda: [cron.get_next(datetime, start_time=after) for cron, after in ready]
