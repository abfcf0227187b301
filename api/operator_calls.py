"""What the operators' OpenAPI document says of each call, and what is only answered there."""

from __future__ import annotations

from typing import Any

from api import operator_brakes, operators
from api.answers import ANSWERS, COUNT, TEXT, TIME, TIME_OR_NULL, ref
from api.calls import Doc
from api.errors import CONFLICT, NOT_FOUND
from engine.rules.brakes import BrakeKind

_TENANT = "/admin/v1/tenants/{tenant}"
_TEXT_OR_NULL = {"type": ["string", "null"]}

OPERATOR_CALLS: dict[tuple[str, str], Doc] = {
    ("GET", "/admin/v1/tenants"): Doc("list_tenants", "List tenants", "Tenants", {200: "Tenants"}),
    ("POST", "/admin/v1/tenants"): Doc(
        "create_tenant",
        "Create a tenant",
        "Tenants",
        {201: "NewTenant"},
        "The key and the signing secret are shown this once.",
        body=operators.CREATE,
        body_required=True,
        example={"name": "acme-shop"},
        problems=(CONFLICT,),
    ),
    ("GET", _TENANT): Doc("get_tenant", "Read a tenant", "Tenants", {200: "Tenant"}, problems=(NOT_FOUND,)),
    ("PATCH", _TENANT): Doc(
        "change_tenant",
        "Change a tenant's limits, and where its failures are told",
        "Tenants",
        {200: "Tenant"},
        body=operators.CHANGE,
        example={"limits": {"jobs": 1_000}},
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("DELETE", _TENANT): Doc(
        "delete_tenant",
        "Delete a tenant with all its jobs",
        "Tenants",
        {200: "DeletedTenant"},
        "Sent again it goes on where it stopped.",
        problems=(NOT_FOUND,),
    ),
    ("POST", f"{_TENANT}:disable"): Doc(
        "disable_tenant",
        "Let a tenant call nothing and be called by nothing",
        "Tenants",
        {200: "Tenant"},
        "Its runs are skipped, with the reason `tenant_disabled`, within 5 seconds.",
        problems=(NOT_FOUND,),
    ),
    ("POST", f"{_TENANT}:enable"): Doc(
        "enable_tenant", "Let a disabled tenant go on", "Tenants", {200: "Tenant"}, problems=(NOT_FOUND,)
    ),
    ("GET", f"{_TENANT}/keys"): Doc("list_keys", "List a tenant's keys", "Keys", {200: "Keys"}, problems=(NOT_FOUND,)),
    ("POST", f"{_TENANT}/keys"): Doc(
        "create_key",
        "Create a key",
        "Keys",
        {201: "NewKey"},
        "It is shown this once.",
        body=operators.NEW_KEY,
        example={"name": "dashboard", "scope": "read"},
        problems=(NOT_FOUND,),
    ),
    ("POST", f"{_TENANT}/keys/{{key}}:revoke"): Doc(
        "revoke_key", "Revoke a key", "Keys", {200: "Key"}, "Within 2 seconds.", problems=(NOT_FOUND,)
    ),
    ("POST", f"{_TENANT}/keys/{{key}}:rotate"): Doc(
        "rotate_key",
        "Replace a key",
        "Keys",
        {201: "NewKey"},
        "The new one has the old one's name and scope, and is shown this once.",
        body=operators.ROTATE,
        problems=(NOT_FOUND, CONFLICT),
    ),
    ("GET", "/admin/v1/brakes"): Doc(
        "list_brakes",
        "What operators have stopped, and who did",
        "Brakes",
        {200: "Brakes"},
        f"The last {operator_brakes.USES_MAX} uses, the last one first.",
    ),
    ("POST", "/admin/v1/brakes:pause"): Doc(
        "pause_all",
        "Stop every call of the fleet",
        "Brakes",
        {200: "Brake"},
        "Within 5 seconds; calls in flight end by themselves. What is missed meanwhile is each job's `missed_runs` to"
        " decide, once resumed.",
        body=operator_brakes.PULL,
    ),
    ("POST", "/admin/v1/brakes:resume"): Doc("resume_all", "Let calls go on", "Brakes", {200: "Released"}),
    ("POST", "/admin/v1/brakes:block"): Doc(
        "block_origin",
        "Call an origin no more",
        "Brakes",
        {200: "Brake"},
        "Within 5 seconds, whoever's job wants to: such runs are skipped, with the reason `blocked`.",
        body=operator_brakes.BLOCK,
        body_required=True,
        example={"origin": "https://example.com", "note": "its owner complains"},
    ),
    ("POST", "/admin/v1/brakes:unblock"): Doc(
        "unblock_origin",
        "Let an origin be called again",
        "Brakes",
        {200: "Released"},
        body=operator_brakes.UNBLOCK,
        body_required=True,
        example={"origin": "https://example.com"},
    ),
    ("POST", f"{_TENANT}:pause"): Doc(
        "pause_tenant",
        "Stop a tenant's calls and pause its jobs",
        "Brakes",
        {200: "PausedTenant"},
        "Sent again it goes on where it stopped.",
        body=operator_brakes.PULL,
        problems=(NOT_FOUND,),
    ),
    ("POST", f"{_TENANT}:resume"): Doc(
        "resume_tenant",
        "Let a tenant's calls go on",
        "Brakes",
        {200: "ResumedTenant"},
        "With the jobs that were paused with it; what the tenant has paused itself stays so.",
        problems=(NOT_FOUND,),
    ),
    ("GET", "/livez"): Doc("get_livez", "Whether the process lives", "Health", {200: "Live"}, open=True),
}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SHOWN_KEY = {
    "id": TEXT, "name": TEXT, "scope": TEXT, "created_at": TIME, "expires_at": TIME_OR_NULL,
    "last_used_at": TIME_OR_NULL, "revoked_at": TIME_OR_NULL,
}  # fmt: skip
_BRAKE = {
    "stops": {"type": "string", "enum": [kind.name.lower() for kind in BrakeKind]},
    "what": _TEXT_OR_NULL | {"description": "The tenant or the origin."},
    "in_force": {"type": "boolean"},
    "pulled_at": TIME,
    "pulled_by": TEXT,
    "note": _TEXT_OR_NULL,
    "released_at": TIME_OR_NULL,
    "released_by": _TEXT_OR_NULL,
}
_RELEASED = {"was_in_force": {"type": "boolean"}, "released_by": TEXT}

OPERATOR_ANSWERS: dict[str, dict[str, Any]] = {
    "Tenants": _object({"tenants": {"type": "array", "items": ref("Tenant")}}),
    "Tenant": _object(
        {"tenant": TEXT, "created_at": TIME, "disabled_at": TIME_OR_NULL, "on_failure": _TEXT_OR_NULL}
    ),
    "NewTenant": _object({"tenant": TEXT, "api_key": TEXT, "signing_secret": TEXT}),
    "DeletedTenant": _object({"tenant": TEXT, "jobs_deleted": COUNT}),
    "Keys": _object({"keys": {"type": "array", "items": ref("Key")}}),
    "Key": _object(_SHOWN_KEY),
    "NewKey": _object({"api_key": TEXT, **_SHOWN_KEY}),
    "Brakes": _object({"brakes": {"type": "array", "items": ref("Brake")}}),
    "Brake": _object(_BRAKE),
    "PausedTenant": _object(_BRAKE | {"jobs_paused": COUNT}),
    "Released": _object(_RELEASED),
    "ResumedTenant": _object(_RELEASED | {"jobs_resumed": COUNT}),
    **{name: ANSWERS[name] for name in ("Problem", "Fault", "Live")},
}
