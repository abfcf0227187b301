"""The operators' API: tenants and keys under a key of operators, and nothing under any other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import count

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from api.endpoint import OperatorEndpoint
from api.openapi import operator_document
from api.operator_calls import OPERATOR_CALLS
from api.routes import operator_routes
from engine.store.admin import create_key
from engine.store.shard import Shard
from engine.store.tenants import hash_key
from tests.support.api import ApiServer, Tenant, served
from tests.support.mysql import SchemaPool
from tests.support.wait import until


@pytest.fixture(scope="module")
def both(schema_pool: SchemaPool) -> Iterator[tuple[ApiServer, ApiServer]]:
    """The operators' API and the tenants' API of one fleet."""
    with (
        schema_pool.schema() as first,
        schema_pool.schema(first=False) as second,
        served([first, second], operators=True) as operators,
        served([first, second], make=False) as tenants,
    ):
        yield operators, tenants


@pytest.fixture
def operator(both: tuple[ApiServer, ApiServer]) -> Tenant:
    """A client with a key of operators."""

    async def make() -> str:
        shard = Shard(both[0].dsns[0], 0)
        try:
            return (await create_key(shard, None, "root", "admin", None)).api_key
        finally:
            await shard.close()

    client = both[0].tenant()
    client.key = asyncio.run(make())
    return client


def tenant_of(both: tuple[ApiServer, ApiServer], api_key: str) -> Tenant:
    tenant = both[1].tenant()
    tenant.key = api_key
    return tenant


def test_a_tenant_is_created_limited_disabled_and_deleted(operator: Tenant, both: tuple[ApiServer, ApiServer]) -> None:
    created = operator.call("POST", "/admin/v1/tenants", {"name": "acme"})
    assert created.status == 201
    acme = tenant_of(both, created.json["api_key"])
    assert acme.put("j").status == 201
    assert operator.call("POST", "/admin/v1/tenants", {"name": "acme"}).status == 409
    changed = operator.call(
        "PATCH", "/admin/v1/tenants/acme", {"limits": {"jobs": 1}, "on_failure": "https://x.example/"}
    )
    assert changed.json["on_failure"] == "https://x.example/"
    names = (f"k{n}" for n in count())
    until(lambda: acme.put(next(names)).status == 409, seconds=5)
    assert operator.call("POST", "/admin/v1/tenants/acme:disable").json["disabled_at"]
    until(lambda: acme.get("/v1/jobs").status == 403, seconds=5)
    assert operator.call("POST", "/admin/v1/tenants/acme:enable").json["disabled_at"] is None
    assert "acme" in [tenant["tenant"] for tenant in operator.get("/admin/v1/tenants").json["tenants"]]
    assert operator.call("DELETE", "/admin/v1/tenants/acme").json["jobs_deleted"] >= 1
    assert operator.get("/admin/v1/tenants/acme").status == 404


def test_keys_are_created_rotated_and_revoked(operator: Tenant, both: tuple[ApiServer, ApiServer]) -> None:
    operator.call("POST", "/admin/v1/tenants", {"name": "keys"})
    path = "/admin/v1/tenants/keys/keys"
    made = operator.call("POST", path, {"name": "reader", "scope": "read", "expires_in": "1h"})
    assert made.status == 201
    assert tenant_of(both, made.json["api_key"]).get("/v1/jobs").status == 200
    rotated = operator.call("POST", f"{path}/{made.json['id']}:rotate", {"keep_old_for": "0s"})
    assert (rotated.status, rotated.json["scope"]) == (201, "read")
    until(lambda: tenant_of(both, made.json["api_key"]).get("/v1/jobs").status == 401, seconds=5)
    assert operator.call("POST", f"{path}/{rotated.json['id']}:revoke").status == 200
    assert operator.call("POST", f"{path}/none:revoke").status == 404
    assert [key["name"] for key in operator.get(path).json["keys"]] == ["first", "reader", "reader"]


def test_p9_only_a_key_of_operators_opens_it(operator: Tenant, both: tuple[ApiServer, ApiServer]) -> None:
    tenants_key = both[1].tenant()
    tenant = both[0].tenant()
    assert tenant.get("/admin/v1/tenants").status == 403
    assert tenants_key.get("/admin/v1/tenants").status == 404, "the tenants' listener does not know it"
    operators_key_elsewhere = tenant_of(both, str(operator.key))
    assert operators_key_elsewhere.get("/v1/jobs").status == 403
    operator.key = None
    assert operator.get("/admin/v1/tenants").status == 401


def test_p9_every_operators_call_is_closed_to_every_other_key(
    operator: Tenant, both: tuple[ApiServer, ApiServer]
) -> None:
    """Of each route of the table, so that a new one is closed too, or fails here."""

    async def made(scope: str, tenant_id: int | None, expires_in_ms: int | None = None) -> str:
        shard = Shard(both[0].dsns[0], 0)
        try:
            return (await create_key(shard, tenant_id, "k", scope, expires_in_ms)).api_key
        finally:
            await shard.close()

    tenant = both[0].tenant()
    revoked, expired = asyncio.run(made("admin", None)), asyncio.run(made("admin", None, 1))
    both[0].first_rows(f"UPDATE api_keys SET revoked_at = 1 WHERE key_hash = X'{hash_key(revoked).hex()}'")
    keys = {scope: asyncio.run(made(scope, tenant.tenant_id)) for scope in ("full", "read", "worker:*")}
    wrong = [(None, 401), ("sz_" + "a" * 32, 401), (revoked, 401), (expired, 401), *((k, 403) for k in keys.values())]
    before = both[0].first_rows("SELECT * FROM tenants"), both[0].first_rows("SELECT * FROM brakes")
    calls = [
        (method, re.sub(r"\{(\w+):name\}", "acme", route.path))
        for route in operator_routes(both[0].service)
        if isinstance(route, Route) and isinstance(route.app, OperatorEndpoint)
        for method in route.app.handlers
    ]
    assert len(calls) > 20
    for method, path in calls:
        for key, status in wrong:
            tenant.key = key
            assert tenant.call(method, path, {} if method == "POST" else None).status == status, (method, path, key)
    assert (both[0].first_rows("SELECT * FROM tenants"), both[0].first_rows("SELECT * FROM brakes")) == before


def test_the_brakes_are_pulled_and_released_and_who_did_is_the_keys_name(
    operator: Tenant, both: tuple[ApiServer, ApiServer]
) -> None:
    pulled = operator.call("POST", "/admin/v1/brakes:pause", {"note": "restored"}).json
    assert (pulled["stops"], pulled["in_force"], pulled["pulled_by"]) == ("all", True, "root")
    assert pulled["note"] == "restored"
    released = operator.call("POST", "/admin/v1/brakes:resume").json
    assert released == {"was_in_force": True, "released_by": "root"}
    assert operator.call("POST", "/admin/v1/brakes:resume").json["was_in_force"] is False
    blocked = operator.call("POST", "/admin/v1/brakes:block", {"origin": "HTTPS://Example.COM"}).json
    assert (blocked["stops"], blocked["what"]) == ("origin", "https://example.com:443")
    released = operator.call("POST", "/admin/v1/brakes:unblock", {"origin": "https://example.com:443/"}).json
    assert released["was_in_force"] is True
    for origin in ("example.com", "https://example.com/path", "https://u:p@example.com", "https://0x7f.1/", ""):
        refused = operator.call("POST", "/admin/v1/brakes:block", {"origin": origin})
        assert (refused.status, refused.json["errors"][0]["pointer"]) == (422, "/origin"), origin
    created = operator.call("POST", "/admin/v1/tenants", {"name": "braked"}).json
    braked = tenant_of(both, created["api_key"])
    braked.put("j")
    assert operator.call("POST", "/admin/v1/tenants/braked:pause").json["jobs_paused"] == 1
    assert braked.job("j")["paused"] is True
    assert operator.call("POST", "/admin/v1/tenants/braked:resume").json["jobs_resumed"] == 1
    assert braked.job("j")["paused"] is False
    assert operator.call("POST", "/admin/v1/tenants/none:pause").status == 404
    used = operator.get("/admin/v1/brakes").json["brakes"]
    assert [(each["stops"], each["in_force"], each["released_by"]) for each in used] == [
        ("tenant", False, "root"), ("origin", False, "root"), ("all", False, "root"),
    ]  # fmt: skip


def test_the_document_of_the_operators_is_valid_complete_and_true(operator: Tenant) -> None:
    said = operator_document()
    OpenAPIV31SpecValidator(said).validate()
    served = set()
    for route in operator_routes(operator.server.service):
        assert isinstance(route, Route)
        methods = set(route.app.handlers) - {"HEAD"} if isinstance(route.app, OperatorEndpoint) else {"GET"}
        served |= {(method, route.path.replace(":name}", "}")) for method in methods}
    assert served - {("GET", "/openapi.json")} == set(OPERATOR_CALLS)
    key, operator.key = operator.key, None
    assert operator.get("/openapi.json").json == said
    operator.key = key
    operator.call("POST", "/admin/v1/tenants", {"name": "told"})
    key_id = operator.call("POST", "/admin/v1/tenants/told/keys", {}).json["id"]
    last = ("POST", "/admin/v1/tenants/{tenant}/keys/{key}:revoke"), ("DELETE", "/admin/v1/tenants/{tenant}")
    first_to_last = sorted(OPERATOR_CALLS.items(), key=lambda each: (each[0] in last, each[0][0] == "DELETE"))
    for (method, path), doc in first_to_last:
        filled = path.replace("{tenant}", "told").replace("{key}", key_id)
        reply = operator.call(method, filled, doc.example or ({} if method in ("POST", "PATCH") else None))
        found = said["paths"][path][method.lower()]["responses"][str(reply.status)]
        (content,) = found["content"].values()
        schema = {**content["schema"], "components": said["components"]}
        jsonschema.Draft202012Validator(schema).validate(reply.json)
        assert reply.status in doc.answers, (method, path, reply)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/v1/tenants", {"name": "A"}, 422),
        ("POST", "/admin/v1/tenants", {}, 422),
        ("POST", "/admin/v1/tenants", b"[", 400),
        ("PATCH", "/admin/v1/tenants/none", {}, 404),
        ("PUT", "/admin/v1/tenants", {}, 405),
        ("GET", "/admin/v1/tenant", None, 404),
    ],
)
def test_bad_input_is_refused(operator: Tenant, method: str, path: str, body: object, status: int) -> None:
    assert operator.call(method, path, body).status == status
