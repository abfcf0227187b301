"""`secondzero migrate`: brings the shards' databases to the schema of this release and makes them one fleet."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from engine.clock import SystemClock
from engine.config import Dsn, Settings
from engine.contact import Contact
from engine.events import Events
from engine.keys import Keys
from engine.settings import (
    SettingsError,
    asked_history,
    keys_of,
    load_settings,
    settings_arguments,
    with_history,
)
from engine.stages.days import Days
from engine.store.fleet import create_fleet, read_fleet, refuse_other_fleet
from engine.store.reseal import seal_plain
from engine.store.server_check import check_server
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from migrations.apply import apply


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "migrate",
        help="bring the databases of the shards to the schema of this release",
        description="Applies the migrations that a shard lacks. Safe to run again, also after a kill half-way.",
        allow_abbrev=False,
    )
    settings_arguments(parser, {"shards", "secrets", "fleet", "history", "times"})
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    dsns = settings.shards
    if not dsns:
        raise SettingsError(["--shard: give the address of each shard, the first one first"])
    applied = asyncio.run(migrate(dsns, keys_of(settings), settings.partition_count, settings))
    done = {str(dsn): names for dsn, names in zip(dsns, applied, strict=True)}
    if args.json:
        print(orjson.dumps({"applied": done}).decode())
    else:
        print(*[f"{shard}: {', '.join(names) or 'nothing to do'}" for shard, names in done.items()], sep="\n")
    return 0


async def migrate(
    dsns: Sequence[Dsn], keys: Keys, partition_count: int | None = None, settings: Settings | None = None
) -> list[list[str]]:
    """Bring every shard to this release and make them one fleet with its first days, whose secrets have a key. The
    files applied to each.

    Every server, every old shard and the key are checked before the first is changed. The settings say where the
    history is; in Cassandra, its keyspace is made too.
    """
    asked = settings or Settings()
    key_id = keys.current_id
    clock = SystemClock()
    for dsn in dsns:
        await check_server(replace(dsn, database=""), clock)
    fleet = await refuse_other_fleet(dsns, partition_count, asked_history(asked))
    asked = with_history(asked, fleet.history)
    applied = [await apply(dsn, first=index == 0) for index, dsn in enumerate(dsns)]
    shards = [Shard(dsn, index, keys=keys) for index, dsn in enumerate(dsns)]
    try:
        await create_fleet(shards, partition_count, asked.history)
        await adopt_keys(shards[0])
        sealed = await seal_plain(shards)
        if sealed:
            print(f"encrypted with key {key_id}: {sealed} secrets that stood in the clear", file=sys.stderr, flush=True)
        if asked.cassandra is not None:
            await make_history(asked.cassandra, shards[0], asked.retention_days)
        for shard in shards:
            await Days(shard, Events()).run_once(clock.now_ms())
    finally:
        for shard in shards:
            await shard.close()
    return applied


async def make_history(contact: Contact, first: Shard, retention_days: int) -> None:
    """The keyspace of a fleet that is created."""
    from engine.history.schema import create_history  # the driver is loaded where there is a Cassandra

    fleet = await read_fleet(first)
    assert fleet is not None  # noqa: S101 - it was created before
    await asyncio.to_thread(create_history, contact, bytes(fleet.fleet_id), retention_days)
