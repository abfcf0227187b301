"""`secondzero block`: call an origin no more, whoever's job wants to."""

from __future__ import annotations

import argparse
from typing import Any

from engine.commands.administration import add_verb, report, with_first
from engine.commands.brakes import add_note, add_who, document, note_of, origin_of, who_of
from engine.rules.brakes import BrakeKind
from engine.store.brakes import pull


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = add_verb(
        subparsers,
        "block",
        run,
        help="call an origin no more, within 5 seconds",
        description="Runs that would call it are skipped, with the reason `blocked` on record, until it is unblocked.",
    )
    parser.add_argument("origin", metavar="ORIGIN", help="such as https://example.com, or http://example.com:8080")
    add_note(parser)
    add_who(parser)


def run(args: argparse.Namespace) -> int:
    origin, who, note = origin_of(args.origin), who_of(args), note_of(args)
    return report(args, document(with_first(args, lambda first: pull(first, BrakeKind.ORIGIN, origin, who, note))))
