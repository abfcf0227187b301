"""`secondzero api`: the tenants' API against given shards."""

from __future__ import annotations

import argparse
from typing import Any

from api.processes import serve
from engine.config import Settings
from engine.events import Events
from engine.log import LogSubscriber
from engine.settings import SettingsError, load_settings, settings_arguments

GROUPS = {"shards", "secrets", "listen", "api", "serve", "admin", "history", "times", "targets", "log"}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "api",
        help="serve the tenants' API",
        description="Serves the API for the given shards until SIGTERM; answers in flight are finished.",
        allow_abbrev=False,
    )
    settings_arguments(parser, GROUPS)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings: Settings = load_settings(args)
    if not settings.shards:
        raise SettingsError(["--shard: give the address of each shard, the first one first"])
    events = Events()
    events.subscribe(LogSubscriber("api", settings.log_level))
    serve(settings, events)
    return 0
