"""The operators' API: tenants and keys under a key of operators, and nothing under any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from engine.store.admin import create_key
from engine.store.shard import Shard
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
