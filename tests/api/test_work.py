"""The work protocol: claims, heartbeats, ends, and what a stale token gets."""

from __future__ import annotations

import http.client
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from api.openapi import document
from engine.log import LogSubscriber
from engine.rules.brakes import RELEASED, InForce
from engine.rules.work import RESULT_BYTES_MAX
from engine.store.tenants import hash_key, new_api_key
from tests.support.api import ApiServer, Reply, Tenant
from tests.support.wait import until


def function_job(function: str = "report", payload: Any = None, **more: Any) -> dict[str, Any]:
    """A job that is due by hand alone."""
    target = {"function": {"name": function, "payload": payload}}
    return {"schedule": {"cron": "0 0 1 1 *"}, "target": target, **more}


def started(tenant: Tenant, name: str, function: str = "report", payload: Any = None, **more: Any) -> dict[str, Any]:
    """A run of a function, started by hand."""
    assert tenant.put(name, function_job(function, payload, **more)).status == 201
    reply = tenant.call("POST", f"/v1/jobs/{name}:run")
    assert reply.status == 200, reply
    return reply.json


def claim(tenant: Tenant, *functions: str, **more: Any) -> list[dict[str, Any]]:
    reply = tenant.call("POST", "/v1/work:claim", {"functions": functions or ["report"], **more})
    assert reply.status == 200, reply
    return reply.json["runs"]


def say(tenant: Tenant, run: dict[str, Any], verb: str, **said: Any) -> Reply:
    return tenant.call("POST", f"/v1/work/{run['token']}:{verb}", said)


def run_of(tenant: Tenant, run: dict[str, Any]) -> dict[str, Any]:
    reply = tenant.get(f"/v1/jobs/{run['job']}/runs/{run['scheduled_at']}")
    assert reply.status == 200, reply
    return reply.json


def test_a_run_is_claimed_with_all_that_a_worker_needs_and_completed(tenant: Tenant) -> None:
    run = started(tenant, "daily", payload={"day": 1})
    (claimed,) = claim(tenant, wait="5s")
    assert (claimed["function"], claimed["payload"]) == ("report", {"day": 1})
    assert (claimed["job"], claimed["scheduled_at"], claimed["attempt"]) == ("daily", run["scheduled_at"], 1)
    assert (claimed["heartbeat_interval"], claimed["trigger"]) == ("5s", "manual")
    assert run_of(tenant, run)["state"] == "running"
    assert claim(tenant) == []
    done = say(tenant, claimed, "complete", result={"pages": 3})
    assert (done.status, done.json["state"], done.json["outcome"]) == (200, "succeeded", "function_done")
    assert done.json["attempts"] == 1
    assert run_of(tenant, run)["state"] == "succeeded"


def test_several_runs_are_completed_in_one_call_each_with_an_answer_of_its_own(
    api_server: ApiServer, tenant: Tenant
) -> None:
    for name in ("one", "two", "three", "lost"):
        started(tenant, name)
    claimed = {run["job"]: run for run in claim(tenant, max=4, wait="5s")}
    assert say(tenant, claimed["lost"], "release").status == 200
    (again,) = claim(tenant, wait="5s")
    runs = [{"token": claimed[name]["token"], "result": {"name": name}} for name in ("one", "two", "three", "lost")]
    strangers = [{"token": "A" * 64}, {"token": "made up"}, {"token": "ü" * 64}]
    for repeat in range(2):
        reply = tenant.call("POST", "/v1/work:complete", {"runs": [*runs, *strangers]})
        assert reply.status == 200, reply
        results = reply.json["results"]
        assert [result["status"] for result in results] == [200, 200, 200, 409, 404, 404, 404], repeat
        assert [result["run"]["job"] for result in results[:3]] == ["one", "two", "three"]
        assert {result["run"]["state"] for result in results[:3]} == {"succeeded"}
    assert "attempt 2 is the last" in results[3]["problem"]["detail"]
    assert run_of(tenant, claimed["two"])["result"] == {"name": "two"}
    assert run_of(tenant, claimed["lost"])["state"] == "running"
    assert say(tenant, again, "complete").status == 200
    other = api_server.tenant().call("POST", "/v1/work:complete", {"runs": runs})
    assert [result["status"] for result in other.json["results"]] == [404] * 4


def test_a_token_that_stands_twice_in_a_call_ends_its_run_once(tenant: Tenant) -> None:
    run = started(tenant, "twice")
    (claimed,) = claim(tenant, wait="5s")
    reply = tenant.call("POST", "/v1/work:complete", {"runs": [{"token": claimed["token"]}] * 2})
    assert [result["status"] for result in reply.json["results"]] == [200, 200]
    assert (run_of(tenant, run)["state"], run_of(tenant, run)["attempts"]) == ("succeeded", 1)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/runs"),
        ({"runs": []}, "/runs"),
        ({"runs": [{}]}, "/runs/0/token"),
        ({"runs": [{"token": "x"}] * 101}, "/runs"),
        ({"runs": [{"token": "x"}, {"token": "x", "result": "x" * (RESULT_BYTES_MAX + 1)}]}, "/runs/1/result"),
    ],
)
def test_a_call_for_several_that_is_wrong_is_told_where_and_ends_nothing(
    tenant: Tenant, body: object, pointer: str
) -> None:
    reply = tenant.call("POST", "/v1/work:complete", body)
    assert (reply.status, [fault["pointer"] for fault in reply.json["errors"]]) == (422, [pointer])


def test_a_brake_keeps_runs_from_workers_until_it_is_released(tenant: Tenant) -> None:
    other = tenant.server.tenant()
    runs = [started(each, "braked") for each in (tenant, other)]
    brakes = tenant.server.service.brakes
    try:
        brakes.in_force = InForce(tenants=frozenset({tenant.tenant_id}))
        assert claim(tenant) == []
        assert claim(tenant, wait="300ms") == []
        assert [run["job"] for run in claim(other, wait="5s")] == ["braked"]
        brakes.in_force = InForce(everything=True)
        assert claim(other) == claim(tenant, wait="300ms") == []
    finally:
        brakes.in_force = RELEASED
    assert [run["scheduled_at"] for run in claim(tenant, wait="5s")] == [runs[0]["scheduled_at"]]


def test_runs_come_by_priority_and_only_to_who_asks_for_their_function(tenant: Tenant) -> None:
    for priority in ("low", "normal", "critical", "high"):
        started(tenant, f"job-{priority}", priority=priority)
    started(tenant, "other", "other")
    claimed = [run["job"] for _ in range(4) for run in claim(tenant, wait="2s")]
    assert claimed == ["job-critical", "job-high", "job-normal", "job-low"]
    assert [run["job"] for run in claim(tenant, "report", "other", max=10)] == ["other"]


def test_no_tenant_gets_the_work_of_another_nor_may_use_its_token(api_server: ApiServer, tenant: Tenant) -> None:
    started(tenant, "mine")
    other = api_server.tenant()
    assert claim(other) == []
    (claimed,) = claim(tenant)
    assert say(other, claimed, "complete").status == 404
    forged = claimed["token"][:-1] + ("B" if claimed["token"].endswith("A") else "A")
    assert say(tenant, claimed | {"token": forged}, "complete").status == 404


def test_who_waits_gets_a_run_at_once_and_else_nothing_when_the_wait_is_over(tenant: Tenant) -> None:
    assert tenant.put("later", function_job()).status == 201
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(claim, tenant, wait="10s") for _ in range(3)]
        empty = pool.submit(claim, tenant, "nobody", wait="300ms")
        assert empty.result() == []
        for _ in waits:
            assert tenant.call("POST", "/v1/jobs/later:run").status == 200
        got = [wait.result() for wait in waits]
    assert [len(runs) for runs in got] == [1, 1, 1]


def test_what_was_claimed_for_a_worker_that_has_left_goes_back_without_a_try(
    api_server: ApiServer, tenant: Tenant
) -> None:
    assert tenant.put("left", function_job("left")).status == 201
    connection = http.client.HTTPConnection("127.0.0.1", api_server.port, timeout=20)
    headers = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/work:claim", b'{"functions": ["left"], "wait": "20s"}', headers)
    hub = api_server.service.work.hub
    until(lambda: (tenant.tenant_id, "left") in hub.functions)
    connection.close()
    until(lambda: (tenant.tenant_id, "left") not in hub.functions)
    tenant.call("POST", "/v1/jobs/left:run")
    (claimed,) = claim(tenant, "left", wait="5s")
    assert claimed["attempt"] == 1


def test_progress_and_note_are_shown_while_a_run_goes_on(tenant: Tenant) -> None:
    run = started(tenant, "slow")
    (claimed,) = claim(tenant)
    beat = say(tenant, claimed, "heartbeat", progress=40, note="page 4 of 10")
    assert (beat.status, beat.json["stop"]) == (200, False)
    shown = run_of(tenant, run)
    assert (shown["progress"], shown["note"], shown["function"]) == (40, "page 4 of 10", "report")
    say(tenant, claimed, "complete", result={"pages": 10})
    assert run_of(tenant, run)["result"] == {"pages": 10}


def test_a_cancel_reaches_the_worker_with_its_heartbeat_and_ends_the_run(tenant: Tenant) -> None:
    run = started(tenant, "cancelled")
    (claimed,) = claim(tenant)
    path = f"/v1/jobs/cancelled/runs/{run['scheduled_at']}:cancel"
    assert tenant.call("POST", path).status == 202
    assert say(tenant, claimed, "heartbeat").json["stop"] == "cancelled"
    assert say(tenant, claimed, "complete", result=1).json["state"] == "cancelled"
    assert run_of(tenant, run)["state"] == "cancelled"


def test_failures_are_retried_or_not_as_the_worker_says(tenant: Tenant) -> None:
    run = started(tenant, "failing", retry={"backoff": "1ms"})
    (claimed,) = claim(tenant)
    assert say(tenant, claimed, "fail", error="away").json["state"] == "pending"
    (again,) = claim(tenant, wait="5s")
    assert again["attempt"] == 2
    assert say(tenant, again, "fail", error="broken", retryable=False).json["state"] == "failed"
    attempts = run_of(tenant, run)["attempt_list"]
    assert [(each["attempt"], each["answer"]) for each in attempts] == [(1, "away"), (2, "broken")]


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
def test_a_stale_token_gets_409_with_the_reason_and_changes_nothing(tenant: Tenant, verb: str) -> None:
    run = started(tenant, "stale")
    (claimed,) = claim(tenant)
    say(tenant, claimed, "release", started=False)
    (second,) = claim(tenant, wait="5s")
    before = run_of(tenant, run)
    reply = say(tenant, claimed, verb, **({"error": "x"} if verb == "fail" else {}))
    assert reply.status == 409
    assert "attempt 2 is the last" in reply.json["detail"]
    assert run_of(tenant, run) == before
    assert say(tenant, second, "complete").status == 200


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release", "abolish", ""])
def test_p9_no_log_line_shows_a_token(tenant: Tenant, verb: str) -> None:
    log, colon = io.BytesIO(), ":" if verb else ""
    tenant.server.service.events.subscribe(LogSubscriber("api", "debug", log))
    started(tenant, f"logged-{verb}")
    (claimed,) = claim(tenant)
    for token in (claimed["token"], claimed["token"][::-1]):
        tenant.call("POST", f"/v1/work/{token}{colon}{verb}", {"error": "x"} if verb == "fail" else {})
    told = log.getvalue().decode()
    assert f'/v1/work/{{token}}{colon}{verb}"' in told
    assert claimed["token"] not in told
    assert claimed["token"][::-1] not in told


def test_a_run_that_nobody_asks_for_says_so(tenant: Tenant) -> None:
    run = started(tenant, "lonely", "nobody.asks")
    since = run_of(tenant, run)["waiting"]
    assert since == f"no worker has asked for this function since {run['scheduled_at']}"


def test_a_key_of_workers_can_claim_its_functions_and_nothing_else(api_server: ApiServer, tenant: Tenant) -> None:
    worker = key_of_scope(api_server, tenant, "worker:reports.*,mail")
    started(tenant, "a", "reports.daily")
    assert [run["function"] for run in claim(worker, "reports.daily", "mail")] == ["reports.daily"]
    refused = worker.call("POST", "/v1/work:claim", {"functions": ["mail", "billing"]})
    assert (refused.status, refused.json["detail"]) == (403, "this key may not claim billing")
    assert worker.get("/v1/jobs").status == 403
    reader = key_of_scope(api_server, tenant, "read")
    assert reader.call("POST", "/v1/work:claim", {"functions": ["mail"]}).status == 403


def key_of_scope(server: ApiServer, tenant: Tenant, scope: str) -> Tenant:
    key = new_api_key()
    columns = "key_hash, tenant_id, name, scope, created_at"
    values = f"X'{hash_key(key).hex()}', {tenant.tenant_id}, 'worker', '{scope}', 0"
    server.first_rows(f"INSERT INTO api_keys ({columns}) VALUES ({values})")
    narrow = Tenant.__new__(Tenant)
    narrow.server, narrow.tenant_id, narrow.key = server, tenant.tenant_id, key
    return narrow


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/functions"),
        ({"functions": []}, "/functions"),
        ({"functions": ["f"] * 101}, "/functions"),
        ({"functions": ["not a name"]}, "/functions/0"),
        ({"functions": ["f"], "max": 0}, "/max"),
        ({"functions": ["f"], "max": 101}, "/max"),
        ({"functions": ["f"], "wait": "61s"}, "/wait"),
        ({"functions": ["f"], "waits": "1s"}, "/waits"),
    ],
)
def test_a_claim_that_asks_wrongly_is_told_where(tenant: Tenant, body: object, pointer: str) -> None:
    reply = tenant.call("POST", "/v1/work:claim", body)
    assert (reply.status, [fault["pointer"] for fault in reply.json["errors"]]) == (422, [pointer])


def test_payloads_results_and_words_have_bounds(tenant: Tenant) -> None:
    large = tenant.put("large", function_job(payload="x" * 256 * 1024))
    assert (large.status, large.json["errors"][0]["pointer"]) == (422, "/target/function/payload")
    started(tenant, "bounded", payload="x" * 255 * 1024)
    (claimed,) = claim(tenant)
    assert len(claimed["payload"]) == 255 * 1024
    refused = say(tenant, claimed, "complete", result="x" * RESULT_BYTES_MAX)
    assert (refused.status, refused.json["errors"][0]["detail"]) == (422, "at most 65536 bytes as JSON")
    assert say(tenant, claimed, "heartbeat", progress=101).status == 422
    assert say(tenant, claimed, "heartbeat", note="x" * 257).status == 422
    assert say(tenant, claimed, "fail", error="x" * 1025).status == 422
    assert say(tenant, claimed, "fail").status == 422
    assert say(tenant, claimed, "complete", result="x" * (RESULT_BYTES_MAX - 2)).status == 200


def test_answers_are_what_the_document_says(tenant: Tenant) -> None:
    started(tenant, "documented")
    reply = tenant.call("POST", "/v1/work:claim", {"functions": ["report"]})
    check(reply, "/v1/work:claim")
    (claimed,) = reply.json["runs"]
    check(say(tenant, claimed, "heartbeat"), "/v1/work/{token}:heartbeat")
    check(say(tenant, claimed, "release"), "/v1/work/{token}:release")
    check(say(tenant, claimed, "complete"), "/v1/work/{token}:complete")


def check(reply: Reply, path: str) -> None:
    said = document()["paths"][path]["post"]["responses"][str(reply.status)]
    (content,) = said["content"].values()
    schema = {**content["schema"], "components": document()["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply.json)
