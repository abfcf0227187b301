"""Secrets of tenants: stored encrypted, answered as fingerprints, kept by them, compared as what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from engine.config import Secret
from engine.keys import new_key
from tests.support.api import CRON_JOB, ApiServer, Tenant, served
from tests.support.mysql import SchemaPool, query

CANARY = "c4nary-hunter2"


def job(headers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return CRON_JOB | {"target": {"http": {"url": "https://example.com/", "headers": headers}}} | more


def headers_of(tenant: Tenant, name: str) -> Any:
    return tenant.job(name)["target"]["http"]["headers"]


def everything_stored(server: ApiServer) -> str:
    """Every row of every table, as text."""
    return "\n".join(repr(server.rows(f"SELECT * FROM {table}")) for (table,) in server.first_rows("SHOW TABLES"))


def test_p9_no_secret_stands_in_mysql(tenant: Tenant, api_server: ApiServer) -> None:
    secret = {"X-Key": {"value": CANARY, "secret": True}, "Authorization": f"Bearer {CANARY}"}
    assert tenant.put("sealed", job(secret), **{"Idempotency-Key": "a"}).status == 201
    assert tenant.put("sealed", job(secret, timeout="5s")).status == 200
    assert tenant.call("POST", "/v1/jobs/sealed:pause", {}).status == 200
    rotated = tenant.call("POST", "/v1/signing-secrets:rotate", {}, {"Idempotency-Key": "b"})
    signing = [each["secret"] for each in rotated.json["signing_secrets"]]
    stored = everything_stored(api_server)
    assert "sealed" in stored
    for text in (CANARY, *signing, *(secret.removeprefix("whsec_") for secret in signing)):
        assert text not in stored
    again = tenant.call("POST", "/v1/signing-secrets:rotate", {}, {"Idempotency-Key": "b"})
    assert again.json == rotated.json, "the answer on record is opened for its tenant"


@pytest.mark.parametrize(
    "name", ["Authorization", "cookie", "X-Api-Key", "X-API-KEY", "Api-Key", "X-Auth-Token", "X-Client-Secret"]
)
def test_p9_some_headers_are_secret_though_nobody_says_so(tenant: Tenant, name: str) -> None:
    assert tenant.put(f"default-{name}", job({name: CANARY, "X-Order": "7"})).status == 201
    shown = headers_of(tenant, f"default-{name}")
    assert shown[name].keys() == {"secret", "fingerprint"}
    assert shown["X-Order"] == "7"
    same = tenant.put(f"default-{name}", job({name: {"value": CANARY, "secret": True}, "X-Order": "7"}))
    assert same.json["version"] == 1, "said or not, it is the same"


def test_a_tenant_may_say_that_a_token_is_no_secret(tenant: Tenant) -> None:
    tenant.put("open", job({"X-Token": {"value": "page-2", "secret": False}}))
    shown = headers_of(tenant, "open")
    assert shown == {"X-Token": {"value": "page-2", "secret": False}}
    assert tenant.put("open", job(shown)).json["version"] == 1, "what was read can be written back"


def test_p9_a_fingerprint_has_eight_digits_and_tells_values_and_tenants_apart(api_server: ApiServer) -> None:
    tenant, other = api_server.tenant(), api_server.tenant()
    for each in (tenant, other):
        each.put("a", job({"Cookie": CANARY}))
        each.put("b", job({"X-Key": {"value": CANARY, "secret": True}}))
        each.put("c", job({"Cookie": CANARY + "!"}))
    mine = [next(iter(headers_of(tenant, name).values()))["fingerprint"] for name in "abc"]
    theirs = [next(iter(headers_of(other, name).values()))["fingerprint"] for name in "abc"]
    assert all(len(each) == 8 and int(each, 16) >= 0 for each in mine)
    assert mine[0] == mine[1] != mine[2]
    assert not set(mine) & set(theirs)


def test_p9_equality_is_decided_on_what_was_written(tenant: Tenant) -> None:
    tenant.put("equal", job({"Cookie": CANARY}))
    assert tenant.put("equal", job({"Cookie": CANARY})).json["version"] == 1
    assert tenant.put("equal", job({"Cookie": CANARY + "2"})).json["version"] == 2


def test_p9_the_faults_of_a_secret_do_not_show_it(tenant: Tenant) -> None:
    for value in (f"{CANARY}\n", f"{CANARY}\0", f"é{CANARY}", CANARY * 1_000):
        for header in (value, {"value": value, "secret": True}):
            refused = tenant.put("faulty", job({"Authorization": header}))
            assert refused.status == 422
            assert CANARY.encode() not in refused.body


def test_p9_a_fingerprint_keeps_its_value_across_a_change_of_keys(schema_pool: SchemaPool) -> None:
    old, new = new_key(), new_key()
    with schema_pool.schema() as first:
        with served([first], secrets_keys=(Secret(old),)) as server:
            tenant = server.tenant_of(old)
            tenant.put("kept", job({"Cookie": CANARY}))
            shown = headers_of(tenant, "kept")
        with served([first], make=False, secrets_keys=(Secret(new), Secret(old))) as server:
            tenant.server = server
            assert headers_of(tenant, "kept") == shown
            assert tenant.put("kept", job(shown)).json["version"] == 1
            assert tenant.put("kept", job(shown, timeout="7s")).json["version"] == 2
            assert headers_of(tenant, "kept") == shown
            key_ids = {row[0] for row in server.rows("SELECT key_id FROM job_versions ORDER BY version")}
            assert len(key_ids) == 2, "a new version is sealed with the new key"


def test_p9_a_job_that_cannot_be_opened_is_no_other_jobs_trouble(schema_pool: SchemaPool) -> None:
    here, elsewhere = new_key(), new_key()
    with schema_pool.schema() as first:
        with served([first], secrets_keys=(Secret(elsewhere),)) as server:
            tenant = server.tenant_of(elsewhere)
            other = server.tenant_of(here)
            tenant.put("sealed", job({"Cookie": CANARY}))
            shown = headers_of(tenant, "sealed")
            asyncio.run(query(first, "DELETE FROM secret_keys"))  # the other host adopts it after this one starts
        with served([first], make=False, secrets_keys=(Secret(here),)) as server:
            tenant.server = other.server = server
            told: list[str] = []
            server.service.events.subscribe(lambda name, fields: told.append(name))
            assert tenant.put("plain").status == other.put("sealed").status == 201
            assert headers_of(tenant, "sealed") == {"Cookie": {"secret": True}}
            listed = tenant.get("/v1/jobs").json["jobs"]
            assert [each["name"] for each in listed] == ["plain", "sealed"]
            for refused in (
                tenant.put("sealed", job({"Cookie": CANARY})),
                tenant.put("sealed", job(shown)),
                tenant.call(
                    "PATCH", "/v1/jobs/sealed", {"timeout": "5s"}, {"Content-Type": "application/merge-patch+json"}
                ),
                tenant.get("/v1/signing-secrets"),
                tenant.call("POST", "/v1/signing-secrets:rotate", {}),
            ):
                assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
                assert "sealed" in refused.json["detail"]
            assert told.count("api.sealed") == 5
            both = {"puts": [{"name": name, "job": job({"Cookie": "b"})} for name in ("sealed", "plain", "new")]}
            results = tenant.call("POST", "/v1/jobs:batch", both).json["results"]
            assert [result["status"] for result in results] == [503, 200, 201]
            assert other.get("/v1/signing-secrets").status == 200
            assert tenant.call("POST", "/v1/jobs/sealed:pause", {}).status == 200
            assert tenant.call("POST", "/v1/jobs/sealed:resume", {}).status == 200
        asyncio.run(query(first, "DELETE FROM secret_keys"))
        with served([first], make=False, secrets_keys=(Secret(here), Secret(elsewhere))) as server:
            tenant.server = server
            assert tenant.job("sealed")["version"] == 3
            assert tenant.put("sealed", job({"Cookie": CANARY})).json["version"] == 3, "nothing was lost"
            assert tenant.call("DELETE", "/v1/jobs/sealed").status == 200


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, served([first]) as server:
        yield server
