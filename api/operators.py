"""The operators' API, on a listener of its own: tenants and their keys, as `secondzero tenant` and `secondzero key`."""

from __future__ import annotations

import re
from typing import Any

from api.errors import CONFLICT, Problem, not_found
from api.fields import Duration, Text, Whole
from api.limits import DEFAULTS
from api.records import Named, Record, Slot
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from api.targets import Url
from engine.errors import CallerError, OperatorError
from engine.rules.timestamps import format_time
from engine.store import admin
from engine.store.admin import KeyRow, NewKey, TenantRow
from engine.store.shard import Shard
from engine.store.tenants import create_tenant

LIMIT_MAX = 10**15
DAY_MS = 86_400_000

TENANT_NAME = Text(64, re.compile("[a-z0-9][a-z0-9-]{0,63}"), "of small letters, digits and hyphens", "acme-shop")
SCOPE = Text(255, re.compile(r"full|read|worker:[A-Za-z0-9._*,-]+"), "full, read or worker:FUNCTION,…", "read")


def _given(given: Any, at: str, reading: Any) -> Any:
    return given


CREATE = Record("CreateTenant", {"name": Slot(TENANT_NAME, required=True)}, _given)
CHANGE = Record(
    "ChangeTenant",
    {
        "limits": Slot(Named(Text(64, example="jobs"), Whole(0, LIMIT_MAX, 1_000), len(DEFAULTS))),
        "on_failure": Slot(Url()),
    },
    _given,
)
NEW_KEY = Record(
    "CreateKey",
    {
        "name": Slot(Text(64, example="dashboard"), default="key"),
        "scope": Slot(SCOPE, default="full"),
        "expires_in": Slot(Duration(1, 3_650 * DAY_MS, "90d")),
    },
    _given,
)
ROTATE = Record("RotateKey", {"keep_old_for": Slot(Duration(0, 30 * DAY_MS, "24h"), default="24h")}, _given)


async def list_tenants(call: Call) -> Answer:
    """GET /admin/v1/tenants"""
    call.query(EMPTY_QUERY)
    return Answer({"tenants": [_show_tenant(tenant) for tenant in await admin.list_tenants(_first(call))]})


async def create(call: Call) -> Answer:
    """POST /admin/v1/tenants: the key and the secret are shown this once."""
    given = await call.fields(CREATE)
    try:
        created = await create_tenant(_first(call), given["name"])
    except CallerError as error:
        raise Problem(CONFLICT, error.faults[0].detail) from error
    shown = {"tenant": given["name"], "api_key": created.api_key, "signing_secret": created.signing_secret}
    return Answer(shown, 201)


async def get_tenant(call: Call) -> Answer:
    """GET /admin/v1/tenants/{tenant}"""
    return Answer(_show_tenant(await _find(call)))


async def change(call: Call) -> Answer:
    """PATCH /admin/v1/tenants/{tenant}: limits of its own, and where failures are told."""
    given = await call.fields(CHANGE)
    tenant = await _find(call)
    unknown = [name for name in given.get("limits", {}) if name not in DEFAULTS]
    if unknown:
        raise Problem(CONFLICT, f"there is no limit {unknown[0][:64]}; there are {', '.join(DEFAULTS)}")
    await admin.set_limits(_first(call), tenant.name, given.get("limits", {}))
    if "on_failure" in given:
        await admin.set_on_failure(_first(call), tenant.name, given["on_failure"])
    return Answer(_show_tenant(await _find(call)))


async def delete(call: Call) -> Answer:
    """DELETE /admin/v1/tenants/{tenant}: with all its jobs; sent again it goes on where it stopped."""
    tenant = await _find(call)
    jobs = await admin.delete_tenant(call.service.placement.shards, tenant.name, call.service.windows)
    return Answer({"tenant": tenant.name, "jobs_deleted": jobs})


async def disable(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}:disable"""
    tenant = await _find(call)
    return Answer(_show_tenant(await admin.set_disabled(_first(call), tenant.name, disabled=True)))


async def enable(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}:enable"""
    tenant = await _find(call)
    return Answer(_show_tenant(await admin.set_disabled(_first(call), tenant.name, disabled=False)))


async def list_keys(call: Call) -> Answer:
    """GET /admin/v1/tenants/{tenant}/keys"""
    tenant = await _find(call)
    return Answer({"keys": [_show_key(key) for key in await admin.list_keys(_first(call), tenant.tenant_id)]})


async def create_key(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}/keys: the key is shown this once."""
    given = await call.fields(NEW_KEY)
    tenant = await _find(call)
    new = await admin.create_key(
        _first(call), tenant.tenant_id, given.get("name", "key"), given.get("scope", "full"), given.get("expires_in")
    )
    return Answer(_show_new(new), 201)


async def revoke_key(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}/keys/{key}:revoke"""
    tenant = await _find(call)
    try:
        key = await admin.revoke_key(_first(call), tenant.tenant_id, call.path["key"])
    except OperatorError as error:
        raise not_found("key") from error
    return Answer(_show_key(key))


async def rotate_key(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}/keys/{key}:rotate"""
    given = await call.fields(ROTATE)
    tenant = await _find(call)
    keep_ms = given.get("keep_old_for", DAY_MS)
    try:
        new = await admin.rotate_key(_first(call), tenant.tenant_id, call.path["key"], keep_ms)
    except OperatorError as error:
        raise Problem(CONFLICT, str(error)) from error
    return Answer(_show_new(new), 201)


def _first(call: Call) -> Shard:
    return call.service.placement.first


async def _find(call: Call) -> TenantRow:
    try:
        return await admin.find_tenant(_first(call), call.path["tenant"])
    except OperatorError as error:
        raise not_found("tenant") from error


def _show_tenant(tenant: TenantRow) -> dict[str, Any]:
    return {
        "tenant": tenant.name,
        "created_at": format_time(tenant.created_at_ms),
        "disabled_at": _time_or_none(tenant.disabled_at_ms),
        "on_failure": tenant.on_failure_url,
    }


def _show_key(key: KeyRow) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "name": key.name,
        "scope": key.scope,
        "created_at": format_time(key.created_at_ms),
        "expires_at": _time_or_none(key.expires_at_ms),
        "last_used_at": _time_or_none(key.last_used_at_ms),
        "revoked_at": _time_or_none(key.revoked_at_ms),
    }


def _show_new(new: NewKey) -> dict[str, Any]:
    return {"api_key": new.api_key, **_show_key(new.row)}


def _time_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)
