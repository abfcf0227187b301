"""`secondzero tenant`: who may use the service, and how much of it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from engine.commands.administration import add_verb, report, table, time_or_none, with_first, with_shards
from engine.errors import CallerError, OperatorError
from engine.rules.target_text import Refusal, read_target
from engine.settings import SettingsError
from engine.store.admin import (
    TenantRow,
    delete_tenant,
    find_tenant,
    list_tenants,
    set_disabled,
    set_limits,
    set_on_failure,
)
from engine.store.changes import Windows
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from engine.store.tenants import NewTenant, create_tenant

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
LIMITS = ("requests_per_s", "jobs", "starts_per_s")
LIMIT_MAX = 10**15


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("tenant", help="create, list, limit, disable and delete tenants", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = add_verb(
        verbs,
        "create",
        run_create,
        help="a new tenant with a key and a signing secret",
        description="Prints the key and the signing secret, once: only a hash of the key is stored.",
    )
    create.add_argument("name", help="small letters, digits and hyphens, at most 64")
    add_verb(verbs, "list", run_list, help="all tenants")
    change = add_verb(verbs, "set", run_set, help="a tenant's limits, and where its failures are told")
    change.add_argument("name")
    change.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help=f"{', '.join(LIMITS)}; or default"
    )
    change.add_argument("--on-failure", metavar="URL", help="for jobs without an address of their own; or none")
    for verb, disabled, text in (
        ("disable", True, "stop a tenant's runs and refuse its keys"),
        ("enable", False, "undo"),
    ):
        each = add_verb(verbs, verb, run_disable, help=text)
        each.add_argument("name")
        each.set_defaults(disabled=disabled)
    delete = add_verb(
        verbs,
        "delete",
        run_delete,
        help="delete a tenant with all its jobs",
        description="Disables the tenant, deletes its jobs, then its keys and secrets. Run again it goes on.",
    )
    delete.add_argument("name")
    delete.add_argument("--yes", action="store_true", help="really delete it")


def run_create(args: argparse.Namespace) -> int:
    if not _NAME.fullmatch(args.name):
        raise SettingsError([f"NAME: {args.name!r} is not of small letters, digits and hyphens; example: acme-shop"])
    created = with_first(args, lambda first: _create(first, args.name))
    shown = {"tenant": args.name, "api_key": created.api_key, "signing_secret": created.signing_secret}
    return report(args, shown)


def run_list(args: argparse.Namespace) -> int:
    tenants = with_first(args, list_tenants)
    rows = [(tenant.name, time_or_none(tenant.created_at_ms), _state(tenant)) for tenant in tenants]
    return report(args, {"tenants": list(map(_document, tenants))}, table(("tenant", "created", "state"), rows))


def run_set(args: argparse.Namespace) -> int:
    limits = _read_limits(args.limit)
    url = _read_url(args.on_failure)

    async def act(first: Shard) -> TenantRow:
        await set_limits(first, args.name, limits)
        if args.on_failure is not None:
            await set_on_failure(first, args.name, url)
        return await find_tenant(first, args.name)

    return report(args, _document(with_first(args, act)) | {"limits": limits})


def run_disable(args: argparse.Namespace) -> int:
    tenant = with_first(args, lambda first: set_disabled(first, args.name, args.disabled))
    return report(args, _document(tenant))


def run_delete(args: argparse.Namespace) -> int:
    if not args.yes:
        raise SettingsError([f"--yes: say so to delete the tenant {args.name} with all its jobs"])

    async def act(shards: Sequence[Shard]) -> int:
        return await delete_tenant(shards, args.name, Windows())

    return report(args, {"tenant": args.name, "jobs_deleted": with_shards(args, act)})


async def _create(first: Shard, name: str) -> NewTenant:
    await adopt_keys(first)
    try:
        return await create_tenant(first, name)
    except CallerError as error:
        raise OperatorError(error.faults[0].detail) from error


def _read_limits(texts: Sequence[str]) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    problems = []
    for text in texts:
        name, _, value = text.partition("=")
        if name not in LIMITS:
            problems.append(f"--limit: {name!r} is not one of {', '.join(LIMITS)}")
        elif value == "default":
            limits[name] = None
        elif re.fullmatch("[0-9]{1,15}", value) and int(value) <= LIMIT_MAX:
            limits[name] = int(value)
        else:
            problems.append(f"--limit: {value!r} is neither a whole number nor default; example: {name}=1000")
    if problems:
        raise SettingsError(problems)
    return limits


def _read_url(text: str | None) -> str | None:
    if text is None or text == "none":
        return None
    target = read_target(text)
    if isinstance(target, Refusal):
        raise SettingsError([f"--on-failure: {target.detail}"])
    return text


def _state(tenant: TenantRow) -> str:
    return "active" if tenant.disabled_at_ms is None else f"disabled {time_or_none(tenant.disabled_at_ms)}"


def _document(tenant: TenantRow) -> dict[str, Any]:
    return {
        "tenant": tenant.name,
        "created_at": time_or_none(tenant.created_at_ms),
        "disabled_at": time_or_none(tenant.disabled_at_ms),
        "on_failure": tenant.on_failure_url,
    }
