"""`secondzero migrate`: brings the shards' databases to the schema of this release."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from engine.clock import SystemClock
from engine.config import Dsn
from engine.settings import SettingsError, load_settings, settings_arguments
from engine.store.server_check import check_server
from migrations.apply import apply


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "migrate",
        help="bring the databases of the shards to the schema of this release",
        description="Applies the migrations that a shard lacks. Safe to run again, also after a kill half-way.",
        allow_abbrev=False,
    )
    settings_arguments(parser, {"shards"})
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    dsns = load_settings(args).shards
    if not dsns:
        raise SettingsError(["--shard: give the address of each shard, the first one first"])
    applied = asyncio.run(migrate(dsns))
    done = {str(dsn): names for dsn, names in zip(dsns, applied, strict=True)}
    if args.json:
        print(orjson.dumps({"applied": done}).decode())
    else:
        print(*[f"{shard}: {', '.join(names) or 'nothing to do'}" for shard, names in done.items()], sep="\n")
    return 0


async def migrate(dsns: Sequence[Dsn]) -> list[list[str]]:
    """Check every server before the first is changed, then migrate shard by shard. The files applied to each."""
    clock = SystemClock()
    for dsn in dsns:
        await check_server(replace(dsn, database=""), clock)
    return [await apply(dsn, first=index == 0) for index, dsn in enumerate(dsns)]
