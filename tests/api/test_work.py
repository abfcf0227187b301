"""The work protocol: claims, heartbeats, ends, and what a stale token gets."""

from __future__ import annotations

from typing import Any

from engine.rules.brakes import RELEASED, InForce
from tests.support.api import Reply, Tenant


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
