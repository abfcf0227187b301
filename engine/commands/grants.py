"""`secondzero grants`: the MySQL accounts of a fleet as SQL, each with the rights that its part needs and no others."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from engine.store.grants import PARTS, grants


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "grants",
        help="print the MySQL accounts that the parts need, as SQL",
        description="Prints SQL for one shard; connects to nothing. MySQL chooses each password and answers it. The"
        " account `migrate` first, for the others' tables must be there: secondzero grants migrate | mysql; secondzero"
        " migrate …; secondzero grants keeper engine api admin | mysql.",
        allow_abbrev=False,
    )
    parser.add_argument("part", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them where none is named")
    parser.add_argument("--database", default="secondzero", metavar="NAME", help="the shard's database (secondzero)")
    parser.add_argument("--host", default="%", metavar="PATTERN", help="where the accounts may come from (%%)")
    parser.add_argument("--other", action="store_true", help="for a shard other than the first: without tenants")
    parser.add_argument("--tls", action="store_true", help="let the accounts in over TLS only")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    unknown = sorted(set(args.part) - set(PARTS))
    if unknown:
        args.parser.error(f"no such part: {unknown[0]}; there are {', '.join(PARTS)}")
    made = {
        part: grants(part, args.database, first=not args.other, host=args.host, tls=args.tls)
        for part in args.part or PARTS
    }
    if args.json:
        print(orjson.dumps({"accounts": made}).decode())
    else:
        print(*(f"{statement};" for statements in made.values() for statement in statements), sep="\n")
    return 0
