"""`secondzero engine`: the supervisor, its executors and its keeper, against given shards."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import Any

from engine.clock import SystemClock
from engine.config import Settings
from engine.errors import StoreUnavailable
from engine.history.check import check_apart
from engine.local.listener import free_port
from engine.node import Supervisor
from engine.settings import SettingsError, keys_of, load_settings, settings_arguments, with_history
from engine.store.fleet import FleetRow, check_fleet
from engine.store.server_check import check_server
from engine.store.service_key import check_keys
from engine.store.shard import Shard
from migrations.apply import check_applied

# Where the API listens is asked only because no job may call it.
GROUPS = {"shards", "secrets", "engine", "history", "times", "targets", "calls", "listen", "api", "admin", "log"}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "engine",
        help="run the engine of one host: an executor for each core, and a keeper",
        description="Plans, fires and settles for the given shards until SIGTERM; SIGHUP restarts executors in turn.",
        allow_abbrev=False,
    )
    settings_arguments(parser, GROUPS)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    if not settings.shards:
        raise SettingsError(["--shard: give the address of each shard, the first one first"])
    fleet = asyncio.run(_check(settings))
    settings = with_history(settings, fleet.history if fleet else None)
    away = check_apart(settings, fleet.fleet_id if fleet else None)
    if away:
        print(f"starting without its history, until it answers: {away}", file=sys.stderr, flush=True)
    # Chosen here, so that every executor knows it: no job may call it.
    settings = replace(settings, metrics_port=settings.metrics_port or free_port())
    return Supervisor(settings).run()


async def _check(settings: Settings) -> FleetRow | None:
    """Every server that answers is one we can work with, and they are the shards of one fleet in their order: its row,
    None where none answers.

    One that is away now is left to the engine, which waits for it: the others' jobs must not.
    """
    keys = keys_of(settings)
    shards = [Shard(dsn, index, keys=keys) for index, dsn in enumerate(settings.shards)]
    present = [shard for shard in shards if await _answers(shard)]
    for shard in present:
        await check_server(shard.dsn, SystemClock())
    fleet = await check_fleet(present, len(shards)) if present else None
    for shard in present:
        await check_applied(shard)
    if shards[0] in present:
        await check_keys(shards[0])
    for shard in shards:
        await shard.close()
    return fleet


async def _answers(shard: Shard) -> bool:
    try:
        await shard.now_ms()
    except StoreUnavailable as error:
        print(f"starting without it, until it answers: {error}", file=sys.stderr, flush=True)
        return False
    return True
