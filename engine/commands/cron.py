"""`secondzero cron`: the next times of an expression, clock changes marked; with `--stdin` an answer for each line."""

from __future__ import annotations

import argparse
import sys
from typing import Any, BinaryIO

import orjson

from engine.clock import wall_ms
from engine.errors import CallerError, Fault
from engine.model import Cron
from engine.rules.describe import describe
from engine.rules.schedule import ClockChange, Effect, Mark, Preview, clock_changes, faults_of, next_n_times, preview
from engine.rules.timestamps import EXAMPLE, format_time, parse_time

COUNT_MAX = 10_000
LINE_BYTES_MAX = 1 << 20
EXAMPLE_LINE = '{"expr": "0 9 * * *", "tz": "Europe/Paris", "after": "2026-03-28T00:00:00Z", "n": 3}'

MARKS = {
    Mark.MOVED: "moved here: its own time does not exist on this day",
    Mark.FIRST_TIME_ONLY: "this time comes twice, it fires the first time only",
    Mark.FIRST_OF_TWO: "this time comes twice, it fires both times: the first",
    Mark.SECOND_OF_TWO: "this time comes twice, it fires both times: the second",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "cron",
        help="the next times of a cron expression, clock changes marked",
        description="Prints the next times of a cron expression in UTC and by the zone's own clock.",
    )
    parser.add_argument("expr", nargs="?", metavar="EXPR", help="five fields, six with seconds first, or @daily…")
    parser.add_argument("--tz", default="UTC", metavar="ZONE", help="an IANA time zone (default UTC)")
    parser.add_argument("--after", type=_time_argument, metavar="TIME", help="RFC 3339; only later times (default now)")
    parser.add_argument("-n", type=_count_argument, default=5, metavar="N", help="how many times (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--stdin",
        action="store_true",
        help='read one JSON object a line: {"expr", "after", "tz" (default UTC), "n" (default 1)}, answer one a line',
    )
    parser.set_defaults(func=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    if args.stdin == (args.expr is not None):
        args.parser.error("give an expression, or --stdin and none")
    if args.stdin:
        answer_lines(sys.stdin.buffer, sys.stdout.buffer)
        return 0
    if faults := faults_of(args.expr, args.tz, "EXPR", "--tz"):
        raise CallerError(faults)
    schedule = Cron(args.expr, args.tz)
    after_ms = wall_ms() if args.after is None else args.after
    times = preview(schedule, after_ms, args.n)
    changes = clock_changes(schedule, after_ms, times[-1].time_ms) if times else []
    print(_as_json(schedule, times, changes) if args.json else _as_text(schedule, times, changes))
    return 0


def _time_argument(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _count_argument(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= COUNT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {COUNT_MAX}")
    return int(text)


def _as_json(schedule: Cron, times: list[Preview], changes: list[ClockChange]) -> str:
    answer = {
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "description": describe(schedule.cron),
        "times": [{"time": format_time(t.time_ms), "local": t.local, "clock_change": t.mark} for t in times],
        "clock_changes": [
            {"time": format_time(change.at_ms), "effect": change.effect, "wall_times": change.wall_times}
            for change in changes
        ],
    }
    return orjson.dumps(answer).decode()


def _as_text(schedule: Cron, times: list[Preview], changes: list[ClockChange]) -> str:
    lines = [(t.time_ms, _time_line(t)) for t in times]
    lines += [(change.at_ms, _skipped_line(change)) for change in changes if change.effect is Effect.SKIPPED]
    told = [line for _, line in sorted(lines)] or ["no time up to year 9999"]
    return "\n".join([f"{describe(schedule.cron)} ({schedule.time_zone})", *told])


def _time_line(time: Preview) -> str:
    return f"{format_time(time.time_ms)}  {time.local}" + (f"  {MARKS[time.mark]}" if time.mark else "")


def _skipped_line(change: ClockChange) -> str:
    minutes = (change.offset_after_s - change.offset_before_s) / 60
    return f"{format_time(change.at_ms)}  clocks go forward by {minutes:g} minutes: {change.wall_times} left out"


def answer_lines(questions: BinaryIO, answers: BinaryIO) -> None:
    """One answer for each line, at once, so that both sides of a pipe can wait for each other."""
    while line := questions.readline(LINE_BYTES_MAX):
        answers.write(orjson.dumps(_answer(line, questions), option=orjson.OPT_APPEND_NEWLINE))
        answers.flush()


def _answer(line: bytes, questions: BinaryIO) -> dict[str, Any]:
    if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
        while (rest := questions.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
            pass
        return {"error": f"a line has at most {LINE_BYTES_MAX} bytes"}
    try:
        schedule, after_ms, count = _question(line)
    except CallerError as error:
        return {"error": "; ".join(str(fault) for fault in error.faults)}
    return {"times": [format_time(time_ms) for time_ms in next_n_times(schedule, after_ms, count)]}


def _question(line: bytes) -> tuple[Cron, int, int]:
    """Schedule, instant and count of a line. Raises CallerError with everything that is wrong."""
    try:
        asked = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CallerError([Fault("line", f"is not JSON: {error}", EXAMPLE_LINE)]) from None
    if not isinstance(asked, dict):
        raise CallerError([Fault("line", "must be a JSON object", EXAMPLE_LINE)])
    expr: Any = asked.get("expr")
    tz: Any = asked.get("tz", "UTC")
    count = asked.get("n", 1)
    after_ms = _instant(asked.get("after"))
    faults = faults_of(expr, tz, "expr", "tz")
    if isinstance(after_ms, Fault):
        faults.append(after_ms)
    if type(count) is not int or not 1 <= count <= COUNT_MAX:
        faults.append(Fault("n", f"must be a number from 1 to {COUNT_MAX}", "5"))
    if faults or isinstance(after_ms, Fault):
        raise CallerError(faults)
    return Cron(expr, tz), after_ms, count


def _instant(after: object) -> int | Fault:
    if not isinstance(after, str):
        return Fault("after", "must be an RFC 3339 time", EXAMPLE)
    try:
        return parse_time(after)
    except ValueError as error:
        return Fault("after", str(error), EXAMPLE)
