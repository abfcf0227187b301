"""`secondzero keys`: the keys that secrets in MySQL are encrypted with. (API keys are `secondzero key`.)"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.commands.administration import add_verb, keys_here, report, table, time_or_none, with_first, with_shards
from engine.errors import OperatorError
from engine.keys import add_key, new_key
from engine.settings import SettingsError, load_settings
from engine.store.reseal import reseal
from engine.store.service_key import secret_keys
from engine.store.shard import Shard

_HOW = (
    "Give every host the new key behind the first one, then put it first everywhere, then run this; the old one can go"
    " a day later. With --new-key, where one file serves all of them, the first two steps are taken here."
)


class KeyState(NamedTuple):
    """A key, whether it is here and seals, and since when secrets are encrypted with it."""

    key_id: str
    here: bool
    seals: bool
    used_since: str | None


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "keys", help="the keys that secrets are encrypted with: create, list, rotate", allow_abbrev=False
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = verbs.add_parser("create", help="print a new key, for a file or a variable", allow_abbrev=False)
    create.add_argument("--json", action="store_true", help="one JSON object on standard output")
    create.set_defaults(func=run_create)
    add_verb(verbs, "list", run_list, help="keys by their ids: which are here, and which have encrypted something")
    rotate = add_verb(
        verbs, "rotate", run_rotate, help="encrypt everything again with the first key", description=_HOW
    )
    rotate.add_argument("--new-key", action="store_true", help="put a new key first in the file before")


def run_create(args: argparse.Namespace) -> int:
    key = new_key()
    return report(args, {"key": key}, [key])


def run_list(args: argparse.Namespace) -> int:
    states = with_first(args, _states)
    documents = [state._asdict() for state in states]
    return report(args, {"keys": documents}, table(KeyState._fields, states))


def run_rotate(args: argparse.Namespace) -> int:
    keys = keys_here(load_settings(args))
    if args.new_key:
        if keys.file is None:
            raise SettingsError(["--new-key: needs a file of keys; see secondzero keys rotate --help"])
        if not keys.ids:
            raise OperatorError(f"{keys.source}: there is no key yet that could be replaced")
        add_key(keys.file)

    async def act(shards: Sequence[Shard]) -> int:
        return await reseal(shards, _tell)

    resealed = with_shards(args, act)
    return report(args, {"key_id": keys.current_id, "encrypted_again": resealed})


async def _states(first: Shard) -> list[KeyState]:
    used = {key_id: time_or_none(added_at_ms) for key_id, added_at_ms in await secret_keys(first)}
    here = first.keys.ids
    return [
        KeyState(key_id, key_id in here, here[:1] == [key_id], used.get(key_id))
        for key_id in [*here, *(key_id for key_id in used if key_id not in here)]
    ]


def _tell(resealed: int) -> None:
    """One line that grows, for whoever looks on."""
    if sys.stderr.isatty():
        print(f"\rencrypted again: {resealed:,}", end="", file=sys.stderr, flush=True)
