"""`secondzero resume`: let calls go on that `secondzero pause` has stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from engine.commands.administration import add_verb, report, with_first, with_shards
from engine.commands.brakes import add_who, add_whose, who_of
from engine.rules.brakes import BrakeKind
from engine.store.brakes import release, resume_tenant
from engine.store.changes import Windows
from engine.store.shard import Shard


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = add_verb(
        subparsers,
        "resume",
        run,
        help="let go on what `pause` has stopped",
        description="What is up to 5 minutes late is called, what is older is each job's missed_runs to decide. With"
        " --tenant the jobs are resumed that were paused with it; what the tenant has paused itself stays so.",
    )
    add_whose(parser)
    add_who(parser)


def run(args: argparse.Namespace) -> int:
    who = who_of(args)
    if args.all:
        released = with_first(args, lambda first: release(first, BrakeKind.ALL, "", who))
        return report(args, {"was_in_force": released, "released_by": who})

    async def act(shards: Sequence[Shard]) -> tuple[bool, int]:
        return await resume_tenant(shards, args.tenant, who, Windows())

    released, jobs = with_shards(args, act)
    return report(args, {"was_in_force": released, "released_by": who, "jobs_resumed": jobs})
