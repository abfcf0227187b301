"""`secondzero bench NAME`: measures one thing beside what a user would pick instead, in the same run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import orjson

from engine.errors import OperatorError

BENCHMARKS = (
    *("cron", "wheel", "batch", "fire", "plan", "sustained", "peak"),
    *("rest", "api", "history", "functions", "walls", "record"),
)
"""Modules of bench, in the order `--help` lists them. Each has `add_arguments(parser)` and `run(args, progress)`, which
returns what was measured by name, and imports what it is measured against only there: users need not have that."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure one thing beside what a user would pick instead",
        description="Measures one thing beside what a user would pick instead, in the same run.",
    )
    names = parser.add_subparsers(metavar="NAME", required=True)
    for name in BENCHMARKS:
        module = import_module(f"bench.{name}")
        purpose = str(module.__doc__).splitlines()[0]
        benchmark = names.add_parser(name, help=purpose, description=purpose)
        benchmark.add_argument("--json", action="store_true", help="one JSON object on standard output")
        module.add_arguments(benchmark)
        benchmark.set_defaults(func=run, measure=module.run)


def run(args: argparse.Namespace) -> int:
    try:
        measured = args.measure(args, progress)
    except ModuleNotFoundError as error:
        raise OperatorError(f"{error.name} is not installed: pip install 'secondzero[bench]'") from error
    print(orjson.dumps(measured).decode() if args.json else table(measured))
    return 0


def progress(text: str) -> None:
    """What goes on meanwhile, for whoever watches: standard output holds the result alone."""
    print(text, file=sys.stderr, flush=True)


def table(measured: Mapping[str, object]) -> str:
    """Names and figures in two columns."""
    figures = {name: figure(value) for name, value in flat(measured)}
    name_width, figure_width = max(map(len, figures)), max(map(len, figures.values()))
    return "\n".join(f"{name:<{name_width}}  {text:>{figure_width}}" for name, text in figures.items())


def flat(measured: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Figures within figures, their names joined."""
    for name, value in measured.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name} ")
        else:
            yield prefix + name, value


def figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"  # three digits are more than a machine repeats
    return f"{value:,}" if isinstance(value, int) else str(value)
