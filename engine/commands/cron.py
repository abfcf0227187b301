"""`secondzero cron`: the next times of an expression, clock changes marked."""

import argparse
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser("cron", help="next times of a cron expression, clock changes marked")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    raise NotImplementedError
