"""Jobs that cannot be evaluated, through the API and the audit: answered, listed, and set right by their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine.clock import SystemClock
from engine.commands.audit import audit
from engine.config import Dsn
from engine.model import Reason
from tests.support.api import CRON_JOB, ApiServer, Tenant, served

AGO_MS = 60_000

# A zone that a change of tzdata has taken away, and a row that is broken.
BREAKS = {
    "a zone that is gone": "REPLACE(CONVERT(definition USING utf8mb4), 'UTC', 'Mars/Olympus')",
    "a broken row": "'{}'",
}


@pytest.fixture
def server(shard_dsn: Dsn) -> Iterator[ApiServer]:
    with served([shard_dsn]) as server:
        yield server


def broken(server: ApiServer, how: str, *, set_aside: bool = True) -> Tenant:
    """A tenant with a sound job and one that was due a minute ago and cannot be evaluated."""
    tenant = server.tenant()
    tenant.put("sound")
    tenant.put("broken", CRON_JOB | {"schedule": {"cron": "* * * * *", "time_zone": "UTC"}})
    job = "job_id = (SELECT job_id FROM (SELECT job_id FROM jobs WHERE name = 'broken') AS j)"
    since_ms = SystemClock().now_ms() - AGO_MS
    times = f"written_at = {since_ms - 1}, next_run_at = {since_ms}"
    server.rows(f"UPDATE job_versions SET definition = {BREAKS[how]}, {times} WHERE {job}")
    due = f"state = 3, next_run_at = NULL, resume_at = {since_ms}" if set_aside else f"next_run_at = {since_ms}"
    server.rows(f"UPDATE jobs SET {due} WHERE name = 'broken'")
    return tenant


@pytest.mark.parametrize("set_aside", [True, False], ids=["set aside", "not yet set aside"])
@pytest.mark.parametrize("how", BREAKS)
def test_p2_a_job_that_cannot_be_evaluated_is_answered_and_hides_no_other(
    server: ApiServer, how: str, set_aside: bool
) -> None:
    tenant = broken(server, how, set_aside=set_aside)
    if set_aside:
        assert tenant.job("broken")["state"] == "invalid"
        assert [job["name"] for job in tenant.get("/v1/jobs?state=invalid").json["jobs"]] == ["broken"]
    assert [job["name"] for job in tenant.get("/v1/jobs").json["jobs"]] == ["broken", "sound"]
    for path in ("/v1/forecast", "/v1/clock-changes", "/v1/usage", "/v1/jobs/broken/runs"):
        assert tenant.get(path).status == 200
    result = asyncio.run(audit(server.dsns, 0, None, 30_000))
    assert (result.invalid, result.flawless) == (1, True)


@pytest.mark.parametrize("set_aside", [True, False], ids=["set aside", "not yet set aside"])
@pytest.mark.parametrize("how", BREAKS)
def test_p2_an_edit_sets_it_right_and_what_was_passed_is_on_record(
    server: ApiServer, how: str, set_aside: bool
) -> None:
    tenant = broken(server, how, set_aside=set_aside)
    again = tenant.put("broken")
    assert (again.status, again.json["state"]) == (200, "active")
    assert server.rows("SELECT reason, to_at - from_at >= 60000 FROM skips") == [(Reason.INVALID, 1)]


@pytest.mark.parametrize("how", BREAKS)
def test_it_can_be_deleted(server: ApiServer, how: str) -> None:
    tenant = broken(server, how)
    assert tenant.call("DELETE", "/v1/jobs/broken").status == 200
    assert server.rows("SELECT reason FROM skips") == [(Reason.INVALID,)]
