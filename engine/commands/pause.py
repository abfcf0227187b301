"""`secondzero pause`: stop every call of the fleet, or of one tenant, within seconds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from engine.commands.administration import add_verb, report, with_first, with_shards
from engine.commands.brakes import add_note, add_who, add_whose, document, note_of, who_of
from engine.rules.brakes import BrakeKind
from engine.store.brakes import Brake, pause_tenant, pull
from engine.store.changes import Windows
from engine.store.shard import Shard


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = add_verb(
        subparsers,
        "pause",
        run,
        help="stop every call of the fleet, or of one tenant, within 5 seconds",
        description="Calls in flight end by themselves. With --tenant the tenant's jobs are paused as well, which takes"
        " a while where there are many. What is missed meanwhile is each job's missed_runs to decide, once resumed.",
    )
    add_whose(parser)
    add_note(parser)
    add_who(parser)


def run(args: argparse.Namespace) -> int:
    who, note = who_of(args), note_of(args)
    if args.all:
        return report(args, document(with_first(args, lambda first: pull(first, BrakeKind.ALL, "", who, note))))

    async def act(shards: Sequence[Shard]) -> tuple[Brake, int]:
        return await pause_tenant(shards, args.tenant, who, note, Windows())

    brake, jobs = with_shards(args, act)
    return report(args, document(brake) | {"jobs_paused": jobs})
