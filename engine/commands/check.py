"""`secondzero check`: every problem of the settings at once; starts nothing."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import orjson

from engine.config import GROUPS
from engine.settings import Found, find_settings, settings_arguments, shown

EXIT_WRONG = 2


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("check", help="validate the settings, start nothing", allow_abbrev=False)
    settings_arguments(parser, GROUPS)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    found = find_settings(args, os.environ)
    for problem in found.problems:
        print(f"secondzero: {problem}", file=sys.stderr)
    if args.json:
        print(orjson.dumps(_document(found)).decode())
    elif found.settings:
        for name, value in shown(found.settings).items():
            print(f"{name:16} {_text(value):24} {found.sources.get(name, 'default')}")
    return EXIT_WRONG if found.problems else 0


def _document(found: Found) -> dict[str, Any]:
    values = shown(found.settings) if found.settings else None
    return {"ok": not found.problems, "problems": found.problems, "settings": values}


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
