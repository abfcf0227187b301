"""`secondzero tenant`: who may use the service."""

from __future__ import annotations

import argparse
import asyncio
import re
from typing import Any

import orjson

from engine.errors import CallerError, OperatorError
from engine.local.folder import shards_of
from engine.settings import SettingsError, load_settings, settings_arguments
from engine.store.shard import Shard
from engine.store.tenants import NewTenant, create_tenant

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("tenant", help="create tenants", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = verbs.add_parser(
        "create",
        help="a new tenant with a key and a signing secret",
        description="Prints the key and the signing secret, once: only a hash of the key is stored.",
        allow_abbrev=False,
    )
    create.add_argument("name", help="small letters, digits and hyphens, at most 64")
    _add_common(create)
    create.set_defaults(func=run_create)


def run_create(args: argparse.Namespace) -> int:
    if not _NAME.fullmatch(args.name):
        raise SettingsError([f"NAME: {args.name!r} is not of small letters, digits and hyphens; example: acme-shop"])
    created = asyncio.run(_create(_first_shard(args), args.name))
    shown = {"tenant": args.name, "api_key": created.api_key, "signing_secret": created.signing_secret}
    if args.json:
        print(orjson.dumps(shown).decode())
    else:
        print(*(f"{name}: {value}" for name, value in shown.items()), sep="\n")
    return 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    settings_arguments(parser, {"shards", "data"})
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _first_shard(args: argparse.Namespace) -> Shard:
    """The one that is given, else that of the service which runs in the data folder."""
    return Shard(shards_of(load_settings(args))[0], 0)


async def _create(first: Shard, name: str) -> NewTenant:
    try:
        return await create_tenant(first, name)
    except CallerError as error:
        raise OperatorError(error.faults[0].detail) from error
    finally:
        await first.close()
