"""The walls between tenants: every call of the URL table with every kind of key, and what another one's jobs are then.

A call that is not in CALLS fails the test: whoever adds one says who may make it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from starlette.routing import Route

from api.endpoint import Endpoint, OpenEndpoint, OperatorEndpoint
from api.routes import operator_routes, routes
from engine.config import Settings
from engine.model import RunState
from engine.rules.timestamps import format_time
from engine.settings import keys_of
from engine.store.admin import create_key, set_disabled
from engine.store.shard import Shard
from tests.support.api import CRON_JOB, ApiServer, Reply, RunTable, Tenant, served
from tests.support.mysql import SchemaPool

CANARY = "wall-canary"
FUNCTION_JOB = {"schedule": {"cron": "0 0 1 1 *"}, "target": {"function": {"name": "report"}}, "description": CANARY}
FAILED_AT_MS = 1_700_000_000_000

READ, WRITE, SECRET, WORK = "read", "write", "secret", "work"
"""Who may make a call: every key of jobs, full keys, full keys though it is a GET, and full keys and workers'."""

JOB, RUN = "/v1/jobs/{name:name}", "/v1/jobs/{name:name}/runs/{scheduled_at}"
CALLS: dict[tuple[str, str], str] = {
    **{("POST", f"/v1/work/{{token:name}}:{verb}"): WORK for verb in ("complete", "heartbeat", "fail", "release")},
    ("POST", "/v1/work:claim"): WORK,
    ("POST", "/v1/work:complete"): WORK,
    ("GET", JOB): READ,
    ("PUT", JOB): WRITE,
    ("PATCH", JOB): WRITE,
    ("GET", "/v1/jobs"): READ,
    ("POST", "/v1/jobs:batch"): WRITE,
    ("GET", f"{JOB}/runs"): READ,
    ("GET", f"{JOB}/stats"): READ,
    ("POST", f"{RUN}:cancel"): WRITE,
    ("POST", f"{RUN}:retry"): WRITE,
    ("GET", RUN): READ,
    **{("POST", f"{JOB}:{verb}"): WRITE for verb in ("pause", "resume", "run")},
    ("GET", "/v1/dead-letters"): READ,
    ("POST", "/v1/dead-letters:retry"): WRITE,
    ("POST", "/v1/dead-letters:delete"): WRITE,
    ("POST", "/v1/cron:preview"): READ,
    ("GET", "/v1/clock-changes"): READ,
    ("GET", "/v1/forecast"): READ,
    ("GET", "/v1/usage"): READ,
    ("GET", "/v1/signing-secrets"): SECRET,
    ("POST", "/v1/signing-secrets:rotate"): SECRET,
    ("DELETE", JOB): WRITE,
}
BODIES: dict[tuple[str, str], Any] = {
    ("PUT", JOB): CRON_JOB,
    ("PATCH", JOB): {"timeout": "7s"},
    ("POST", "/v1/jobs:batch"): {"puts": [{"name": "batched", "job": CRON_JOB}], "deletes": ["mine"]},
    ("POST", "/v1/cron:preview"): {"cron": "0 9 * * *"},
    ("POST", "/v1/work:claim"): {"functions": ["report"]},
    ("POST", "/v1/work:complete"): {"runs": [{"token": "{token}"}]},
    ("POST", "/v1/work/{token:name}:fail"): {"error": "away"},
}
CREATES = {("PUT", JOB), ("POST", "/v1/jobs:batch")}
OPEN = {"/openapi.json", "/docs", "/livez", "/readyz"}


class Owner(NamedTuple):
    """A tenant with one of everything: a job, a dead letter, a run that waits, and one that a worker holds."""

    tenant: Tenant
    token: str


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, served([first]) as server:
        yield server


@pytest.fixture
def owner(api_server: ApiServer) -> Owner:
    tenant = api_server.tenant()
    assert tenant.put("mine", CRON_JOB | {"description": CANARY, "labels": {CANARY: "a"}}).status == 201
    RunTable(tenant, "mine").add(FAILED_AT_MS, RunState.FAILED)
    assert tenant.call("POST", "/v1/jobs/mine:run").status == 200
    assert tenant.put("work", FUNCTION_JOB).status == 201
    assert tenant.call("POST", "/v1/jobs/work:run").status == 200
    (claimed,) = tenant.call("POST", "/v1/work:claim", {"functions": ["report"]}).json["runs"]
    return Owner(tenant, claimed["token"])


def call(client: Tenant, method: str, path: str, token: str) -> Reply:
    """Make a call of the table on the owner's things."""
    filled = path.replace("{name:name}", "mine").replace("{token:name}", token)
    filled = filled.replace("{scheduled_at}", format_time(FAILED_AT_MS))
    body = BODIES.get((method, path), {} if method == "POST" else None)
    body = json.loads(json.dumps(body).replace("{token}", token))
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    return client.call(method, filled, body, headers)


def key_of(tenant: Tenant, scope: str, *, owner_id: int | None = None, expires_in_ms: int | None = None) -> Tenant:
    """A client with another key, of the same tenant unless told otherwise."""

    async def make() -> str:
        first = Shard(tenant.server.dsns[0], 0, keys=keys_of(Settings()))
        try:
            return (await create_key(first, owner_id, "k", scope, expires_in_ms)).api_key
        finally:
            await first.close()

    client = tenant.server.tenant()
    client.key = asyncio.run(make())
    return client


def standing(owner: Owner) -> list[Any]:
    """Everything of the owner's that is stored, but for when a key was used last."""
    server, tenant_id = owner.tenant.server, owner.tenant.tenant_id
    of_jobs = f"job_id IN (SELECT job_id FROM jobs WHERE tenant_id = {tenant_id})"
    found = [server.rows(f"SELECT * FROM {table} WHERE {of_jobs} ORDER BY 1, 2, 3") for table in OF_JOBS]
    found += [server.rows(f"SELECT * FROM {table} WHERE tenant_id = {tenant_id} ORDER BY 1, 2") for table in OF_TENANT]
    return [*found, server.rows(f"SELECT key_hash, revoked_at FROM api_keys WHERE tenant_id = {tenant_id}")]


OF_JOBS = ("jobs", "job_versions", "runs", "deferred", "dead_letters", "job_labels", "attempts", "notices")
OF_TENANT = ("tenants", "signing_secrets", "limits", "requests")


def test_p9_every_call_of_the_table_is_in_this_test(api_server: ApiServer) -> None:
    found, open_to_all = set(), set()
    for route in routes(api_server.service):
        assert isinstance(route, Route)
        if isinstance(route.app, OpenEndpoint):
            open_to_all.add(route.path)
        else:
            assert isinstance(route.app, Endpoint)
            found |= {(method, route.path) for method in route.app.handlers if method != "HEAD"}
    assert found == set(CALLS)
    assert open_to_all == OPEN
    for route in operator_routes(api_server.service):
        assert isinstance(route, Route)
        assert isinstance(route.app, OperatorEndpoint) or route.path in {"/livez", "/openapi.json"}


@pytest.mark.parametrize("which", ["no key", "no key of ours", "revoked", "expired"])
def test_p9_without_a_valid_key_every_call_is_401_and_changes_nothing(owner: Owner, which: str) -> None:
    tenant = owner.tenant
    if which == "expired":
        client = key_of(tenant, "full", owner_id=tenant.tenant_id, expires_in_ms=1)
    else:
        client = key_of(tenant, "full", owner_id=tenant.tenant_id)
    if which == "revoked":
        tenant.server.first_rows("UPDATE api_keys SET revoked_at = 1 WHERE name = 'k'")
    elif which != "expired":
        client.key = None if which == "no key" else "sz_" + "a" * 32
    before = standing(owner)
    for method, path in CALLS:
        reply = call(client, method, path, owner.token)
        assert (method, path, reply.status) == (method, path, 401)
        assert CANARY.encode() not in reply.body
    assert standing(owner) == before


@pytest.mark.parametrize(("scope", "may"), [("read", {READ}), ("worker:other", {WORK}), ("admin", set())])
def test_p9_a_lesser_key_may_do_what_its_scope_says_and_changes_nothing(
    owner: Owner, scope: str, may: set[str]
) -> None:
    tenant = owner.tenant
    client = key_of(tenant, scope, owner_id=None if scope == "admin" else tenant.tenant_id)
    before = standing(owner)
    for (method, path), needed in CALLS.items():
        if needed == WORK and WORK in may and path != "/v1/work:claim":
            continue  # who has the token of a run is the one who was given it
        reply = call(client, method, path, owner.token)
        allowed = needed in may and path != "/v1/work:claim"  # that is for another function
        assert (reply.status == 403) is not allowed, (method, path, reply)
        assert reply.status < 500
    assert standing(owner) == before


def test_p9_a_disabled_tenants_keys_do_nothing(owner: Owner) -> None:
    name = owner.tenant.server.first_rows(f"SELECT name FROM tenants WHERE tenant_id = {owner.tenant.tenant_id}")[0][0]

    async def switch() -> None:
        first = Shard(owner.tenant.server.dsns[0], 0)
        try:
            await set_disabled(first, name, disabled=True)
        finally:
            await first.close()

    asyncio.run(switch())
    client = key_of(owner.tenant, "full", owner_id=owner.tenant.tenant_id)
    before = standing(owner)
    for method, path in CALLS:
        assert (method, path, call(client, method, path, owner.token).status) == (method, path, 403)
    assert standing(owner) == before


def test_p9_another_tenants_key_sees_nothing_names_nothing_and_changes_nothing(owner: Owner) -> None:
    other = owner.tenant.server.tenant()
    before = standing(owner)
    job_id = owner.tenant.job("mine")["job_id"]
    for method, path in sorted(CALLS, key=CREATES.__contains__):  # until then it has no job of this name
        reply = call(other, method, path, owner.token)
        if "{token" in path:
            assert reply.status in (404, 409, 410), (path, reply)
        elif "{name" in path and (method, path) not in CREATES:
            assert reply.status == 404, (method, path, reply)
        else:
            assert reply.status < 500, (method, path, reply)
        for mine in (CANARY, job_id, owner.token):
            assert mine.encode() not in reply.body, (method, path)
    assert standing(owner) == before
    assert owner.tenant.get("/v1/jobs/mine").status == 200


def test_p9_the_owners_key_is_refused_nothing(owner: Owner) -> None:
    for method, path in CALLS:
        status = call(owner.tenant, method, path, owner.token).status
        assert status not in (401, 403), (method, path)
        assert status < 500


def test_p9_a_page_token_of_one_tenant_opens_no_page_of_another(owner: Owner) -> None:
    token = owner.tenant.get("/v1/jobs?page_size=1").json["next_page_token"]
    other = owner.tenant.server.tenant()
    reply = other.get(f"/v1/jobs?page_size=1&page_token={token}")
    assert reply.status in (400, 422)
    assert CANARY.encode() not in reply.body


def test_p9_an_idempotency_key_of_one_tenant_answers_no_other(owner: Owner) -> None:
    other = owner.tenant.server.tenant()
    headers = {"Idempotency-Key": "shared"}
    mine = owner.tenant.call("POST", "/v1/signing-secrets:rotate", {}, headers)
    theirs = other.call("POST", "/v1/signing-secrets:rotate", {}, headers)
    assert not {each["secret"] for each in mine.json["signing_secrets"]} & {
        each["secret"] for each in theirs.json["signing_secrets"]
    }


def test_p9_a_problem_never_tells_whether_another_tenant_has_a_name(owner: Owner) -> None:
    other = owner.tenant.server.tenant()

    def told(name: str) -> str:
        return re.sub(name, "NAME", other.get(f"/v1/jobs/{name}").body.decode())

    assert told("mine") == told("nobodys")
