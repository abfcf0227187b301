"""`secondzero key`: the API keys of a tenant, or of operators."""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from engine.commands.administration import add_verb, report, table, time_or_none, with_first
from engine.rules.durations import parse_duration
from engine.settings import SettingsError
from engine.store.admin import KeyRow, NewKey, create_key, find_tenant, list_keys, revoke_key, rotate_key
from engine.store.shard import Shard

T = TypeVar("T")

_SCOPE = re.compile(r"full|read|worker:[A-Za-z_][A-Za-z0-9._*-]{0,127}(,[A-Za-z_][A-Za-z0-9._*-]{0,127})*")
SCOPE_CHARS_MAX = 255
NAME_CHARS_MAX = 64


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("key", help="create, list, rotate and revoke API keys", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = _add_verb(verbs, "create", run_create, help="a new key; printed once, only its hash is stored")
    create.add_argument("--name", default="key", help="what it is for")
    create.add_argument("--scope", default=None, help="full, read or worker:FUNCTION,… (full; operators' keys: admin)")
    create.add_argument("--expires", metavar="DURATION", help="such as 90d; absent: never")
    _add_verb(verbs, "list", run_list, help="keys with their scope, end and last use; never themselves")
    revoke = _add_verb(verbs, "revoke", run_revoke, help="refuse a key from now on")
    revoke.add_argument("key", help="the beginning of its id")
    rotate = _add_verb(verbs, "rotate", run_rotate, help="a new key in place of one, which ends after a while")
    rotate.add_argument("key", help="the beginning of its id")
    rotate.add_argument("--keep", metavar="DURATION", default="24h", help="how long the old one still works (24h)")


def run_create(args: argparse.Namespace) -> int:
    scope = _scope(args)
    expires_ms = None if args.expires is None else _duration("--expires", args.expires)
    if not 0 < len(args.name) <= NAME_CHARS_MAX:
        raise SettingsError([f"--name: from 1 to {NAME_CHARS_MAX} characters"])
    new = _with_tenant(args, lambda first, tenant: create_key(first, tenant, args.name, scope, expires_ms))
    return _report_new(args, new)


def run_list(args: argparse.Namespace) -> int:
    keys = _with_tenant(args, list_keys)
    heads = ("id", "name", "scope", "created", "expires", "last used", "revoked")
    rows = [tuple(_document(key).values()) for key in keys]
    return report(args, {"keys": [_document(key) for key in keys]}, table(heads, rows))


def run_revoke(args: argparse.Namespace) -> int:
    key = _with_tenant(args, lambda first, tenant: revoke_key(first, tenant, args.key))
    return report(args, {"revoked": key.key_id, "name": key.name})


def run_rotate(args: argparse.Namespace) -> int:
    keep_ms = _duration("--keep", args.keep)
    return _report_new(args, _with_tenant(args, lambda first, tenant: rotate_key(first, tenant, args.key, keep_ms)))


def _add_verb(
    verbs: argparse._SubParsersAction[Any], name: str, run: Callable[[argparse.Namespace], int], *, help: str
) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, run, help=help)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--tenant", metavar="NAME", help="whose keys")
    whose.add_argument("--operators", action="store_true", help="keys for the operators' own API")
    return parser


def _with_tenant(args: argparse.Namespace, act: Callable[[Shard, int | None], Awaitable[T]]) -> T:
    async def run(first: Shard) -> T:
        tenant_id = None if args.operators else (await find_tenant(first, args.tenant)).tenant_id
        return await act(first, tenant_id)

    return with_first(args, run)


def _scope(args: argparse.Namespace) -> str:
    scope = str(args.scope or ("admin" if args.operators else "full"))
    allowed = scope == "admin" if args.operators else bool(_SCOPE.fullmatch(scope)) and len(scope) <= SCOPE_CHARS_MAX
    if not allowed:
        raise SettingsError([f"--scope: {scope!r} is not full, read or worker:FUNCTION,… (admin with --operators)"])
    return scope


def _duration(flag: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingsError([f"{flag}: {text!r} {error}; example: 90d"]) from error


def _report_new(args: argparse.Namespace, new: NewKey) -> int:
    return report(args, {"api_key": new.api_key, **_document(new.row)})


def _document(key: KeyRow) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "name": key.name,
        "scope": key.scope,
        "created_at": time_or_none(key.created_at_ms),
        "expires_at": time_or_none(key.expires_at_ms),
        "last_used_at": time_or_none(key.last_used_at_ms),
        "revoked_at": time_or_none(key.revoked_at_ms),
    }
