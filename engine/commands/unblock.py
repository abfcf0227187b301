"""`secondzero unblock`: let an origin be called again."""

from __future__ import annotations

import argparse
from typing import Any

from engine.commands.administration import add_verb, report, with_first
from engine.commands.brakes import add_who, origin_of, who_of
from engine.rules.brakes import BrakeKind
from engine.store.brakes import release


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = add_verb(subparsers, "unblock", run, help="let an origin be called again that `block` has stopped")
    parser.add_argument("origin", metavar="ORIGIN", help="as it was blocked")
    add_who(parser)


def run(args: argparse.Namespace) -> int:
    origin, who = origin_of(args.origin), who_of(args)
    released = with_first(args, lambda first: release(first, BrakeKind.ORIGIN, origin, who))
    return report(args, {"was_in_force": released, "released_by": who})
