"""Batches: each item has its own result, in order, and a batch sent twice completes what is missing."""

from __future__ import annotations

import socket
import struct
from typing import Any

import orjson

from tests.support.api import CRON_JOB, Reply, RunTable, Tenant
from tests.support.wait import until

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def batch(tenant: Tenant, body: object, key: str | None = None) -> Reply:
    return tenant.call("POST", "/v1/jobs:batch", body, {} if key is None else {"Idempotency-Key": key})


def puts(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "job": CRON_JOB | fields} for name in names]


def outcome(reply: Reply) -> list[tuple[str, int]]:
    assert reply.status == 200, reply
    return [(result["name"], result["status"]) for result in reply.json["results"]]


def test_each_item_is_answered_like_a_call_of_its_own(tenant: Tenant) -> None:
    tenant.put("equal")
    tenant.put("edited")
    tenant.put("deleted")
    reply = batch(
        tenant,
        {
            "puts": [
                *puts("new", "equal"), *puts("edited", timeout="5s"), {"name": "wrong", "job": {"schedule": 1}},
                {"name": "odd", "job": None},
            ],
            "deletes": ["deleted", "absent"],
        },
    )  # fmt: skip
    assert outcome(reply) == [
        ("new", 201), ("equal", 200), ("edited", 200), ("wrong", 422), ("odd", 422), ("deleted", 200), ("absent", 404),
    ]  # fmt: skip
    new, _, edited, wrong, *_ = reply.json["results"]
    assert new["job"]["next_run_at"] == new["job"]["effective_from"]
    assert edited["job"]["version"] == 2
    assert wrong["problem"]["errors"][0]["pointer"] == "/schedule"
    assert tenant.job("new")["state"] == "active"
    assert tenant.get("/v1/jobs/wrong").status == tenant.get("/v1/jobs/deleted").status == 404


def test_a_batch_that_is_wrong_as_a_whole_changes_nothing(tenant: Tenant) -> None:
    bad: list[Any] = [
        {"puts": puts("a", "a")},
        {"puts": puts("a"), "deletes": ["a"]},
        {"puts": puts("a", "b/c")},
        {"puts": puts(*(f"n{n}" for n in range(600))), "deletes": [f"d{n}" for n in range(401)]},
        {"puts": [{"name": "a"}]},
        {"put": []},
        [],
    ]
    for body in bad:
        assert batch(tenant, body).status == 422, body
    assert tenant.get("/v1/jobs").json["jobs"] == []
    assert outcome(batch(tenant, {})) == []


def test_a_thousand_jobs_are_created_edited_and_deleted(tenant: Tenant) -> None:
    names = [f"job-{n:04}" for n in range(1_000)]
    created = batch(tenant, {"puts": puts(*names)})
    assert outcome(created) == [(name, 201) for name in names]
    assert outcome(batch(tenant, {"puts": puts(*names)})) == [(name, 200) for name in names]
    assert outcome(batch(tenant, {"puts": puts(*names[:100], timeout="5s")})) == [(name, 200) for name in names[:100]]
    assert outcome(batch(tenant, {"deletes": names[:200]})) == [(name, 200) for name in names[:200]]
    assert len(tenant.get("/v1/jobs?page_size=1000").json["jobs"]) == 800


def test_a_batch_sent_twice_with_one_key_answers_what_it_answered(tenant: Tenant) -> None:
    tenant.put("deleted")
    tenant.put("edited")
    body = {"puts": [*puts("new"), *puts("edited", timeout="5s")], "deletes": ["deleted"]}
    first = batch(tenant, body, key="k")
    assert outcome(first) == [("new", 201), ("edited", 200), ("deleted", 200)]
    assert batch(tenant, body, key="k").json == first.json
    assert batch(tenant, {"puts": puts("new")}, key="k").status == 422
    assert batch(tenant, {"puts": puts("another")}, key="k").status == 422, "none of its names was there"
    assert tenant.get("/v1/jobs/another").status == 404


def test_a_repeat_does_nothing_that_the_first_call_did_not(tenant: Tenant) -> None:
    tenant.put("equal")
    body = {"puts": [*puts("equal"), {"name": "wrong", "job": {}}], "deletes": ["absent"]}
    first = batch(tenant, body, key="k")
    assert outcome(first) == [("equal", 200), ("wrong", 422), ("absent", 404)]
    tenant.put("equal", CRON_JOB | {"timeout": "5s"})
    tenant.put("absent")
    assert batch(tenant, body, key="k").json == first.json
    assert tenant.job("equal")["timeout"] == "5s"
    assert tenant.job("absent")["state"] == "active"


def test_a_repeat_completes_what_is_missing(tenant: Tenant) -> None:
    body = {"puts": puts(*(f"job-{n}" for n in range(20)))}
    first = batch(tenant, body, key="k")
    RunTable(tenant, "job-0").query(f"DELETE FROM requests WHERE tenant_id = {tenant.tenant_id} AND status > 0 LIMIT 3")
    again = batch(tenant, body, key="k")
    ids = [result["job"]["job_id"] for result in first.json["results"]]
    assert [result["job"]["job_id"] for result in again.json["results"]] == ids
    assert sorted(status for _, status in outcome(again)) == [200] * 3 + [201] * 17


def test_a_caller_that_goes_away_leaves_no_half_effect(tenant: Tenant) -> None:
    """Before all is sent nothing is done; once it is begun all of it is, and its repeat gets the answer."""
    names = [f"job-{n}" for n in range(400)]
    body = {"puts": puts(*names, labels={"team": "x"})}
    raw = orjson.dumps(body)
    head = (
        f"POST /v1/jobs:batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\nIdempotency-Key: k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    ).encode()
    begun = f"SELECT 1 FROM requests WHERE tenant_id = {tenant.tenant_id}"
    with socket.create_connection(("127.0.0.1", tenant.server.port)) as connection:
        connection.sendall(head + raw[:-1])
    assert tenant.server.rows(begun) == []
    with socket.create_connection(("127.0.0.1", tenant.server.port)) as connection:
        connection.sendall(head + raw)
        until(lambda: tenant.server.rows(begun))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    until(lambda: not tenant.server.service.in_progress)
    assert len(tenant.get("/v1/jobs?page_size=1000&label=team:x").json["jobs"]) == len(names)
    assert outcome(batch(tenant, body, key="k")) == [(name, 201) for name in names]
    assert tenant.server.failures == []
