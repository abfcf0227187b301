"""What a tenant learns and has beside its jobs: previews, clock changes, the coming hour, limits, signing secrets."""

from __future__ import annotations

from typing import Any

import pytest

from api.clock_changes import months_after
from engine.clock import wall_ms
from engine.rules.timestamps import format_time, parse_time
from tests.support.api import CRON_JOB, Reply, Tenant

NEW_YORK = {"cron": "30 2 * * *", "time_zone": "America/New_York"}


def preview(tenant: Tenant, **body: object) -> Reply:
    return tenant.call("POST", "/v1/cron:preview", body)


def test_a_preview_tells_the_next_times_and_marks_clock_changes(tenant: Tenant) -> None:
    reply = preview(tenant, **NEW_YORK, after="2027-03-13T12:00:00Z", n=2)
    assert reply.status == 200
    assert reply.json["description"] == "At 02:30."
    assert reply.json["times"] == [
        {"time": "2027-03-14T07:00:00Z", "local": "2027-03-14T03:00:00-04:00", "clock_change": "moved"},
        {"time": "2027-03-15T06:30:00Z", "local": "2027-03-15T02:30:00-04:00", "clock_change": None},
    ]
    assert len(preview(tenant, cron="* * * * *").json["times"]) == 10


@pytest.mark.parametrize(
    "body",
    [{}, {"cron": "61 * * * *"}, {"cron": "@daily", "n": 0}, {"cron": "@daily", "n": 1_001}, {"cron": 1},
     {"cron": "@daily", "time_zone": "Mars/Base"}, {"cron": "@daily", "after": "now"}, {"cron": "@daily", "x": 1}],
)  # fmt: skip
def test_a_preview_of_what_is_wrong_is_refused(tenant: Tenant, body: dict[str, Any]) -> None:
    assert preview(tenant, **body).status == 422


def test_a_put_tells_which_clock_changes_its_job_meets(tenant: Tenant) -> None:
    changes = tenant.put("ny", CRON_JOB | {"schedule": NEW_YORK}).json["clock_changes"]
    assert {change["effect"] for change in changes} == {"moved"}
    assert all("at 20" in change["detail"] and "run once" in change["detail"] for change in changes)
    assert tenant.put("utc", CRON_JOB | {"schedule": {"cron": "30 2 * * *"}}).json["clock_changes"] == []


def test_clock_changes_lists_the_jobs_that_meet_one(tenant: Tenant) -> None:
    for n in range(5):
        tenant.put(f"utc-{n}", CRON_JOB | {"schedule": {"cron": "30 2 * * *"}})
    tenant.put("ny", CRON_JOB | {"schedule": NEW_YORK})
    tenant.put("z-hourly", CRON_JOB | {"schedule": {"cron": "*/30 * * * *", "time_zone": "Europe/Paris"}})
    listed = tenant.get("/v1/clock-changes?within=P1Y&page_size=1").json
    assert [job["name"] for job in listed["jobs"]] == ["ny"]
    rest = tenant.get(f"/v1/clock-changes?within=P1Y&page_token={listed['next_page_token']}").json
    assert [job["name"] for job in rest["jobs"]] == ["z-hourly"]
    assert {change["effect"] for change in rest["jobs"][0]["clock_changes"]} == {"skipped", "both_times"}
    assert tenant.get("/v1/clock-changes?within=P1D").json["jobs"] == []
    for wrong in ("1Y", "P0Y", "P1Y2M", "P99Y", ""):
        assert tenant.get(f"/v1/clock-changes?within={wrong}").status == 422


@pytest.mark.parametrize(
    ("now", "months", "later"),
    [("2026-01-31", 1, "2026-02-28"), ("2028-01-31", 1, "2028-02-29"), ("2026-12-15", 1, "2027-01-15"),
     ("2028-02-29", 12, "2029-02-28")],
)  # fmt: skip
def test_months_end_where_a_calendar_says(now: str, months: int, later: str) -> None:
    assert format_time(months_after(parse_time(f"{now}T10:00:00Z"), months)) == f"{later}T10:00:00Z"


def test_the_forecast_counts_the_coming_hour_by_the_second(tenant: Tenant) -> None:
    tenant.put("a", CRON_JOB | {"schedule": {"cron": "*/10 * * * *"}})
    tenant.put("b", CRON_JOB | {"schedule": {"cron": "*/20 * * * *"}})
    tenant.put("later", CRON_JOB | {"schedule": {"run_at": format_time(wall_ms() // 1000 * 1000 + 2 * 3_600_000)}})
    tenant.put("paused", CRON_JOB | {"schedule": {"cron": "* * * * *"}, "paused": True})
    forecast = tenant.get("/v1/forecast").json
    assert forecast["complete"] is True
    assert forecast["runs"] == 9
    assert sorted(second["runs"] for second in forecast["seconds"]) == [1, 1, 1, 2, 2, 2]


def test_calls_beyond_the_limit_answer_429_and_say_when_to_come_back(tenant: Tenant) -> None:
    tenant.server.first_rows(f"INSERT INTO limits VALUES ({tenant.tenant_id}, 'requests_per_s', 3)")
    replies = [tenant.get("/v1/usage") for _ in range(8)]
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 429}
    assert statuses[:3] == [200, 200, 200]
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.headers["Retry-After"] == "1"
    assert refused.headers["RateLimit"] == '"requests";r=0;t=1'
    assert replies[0].headers["RateLimit-Policy"] == '"requests";q=3;w=1'
    assert tenant.server.tenant().get("/v1/usage").status == 200


def test_jobs_beyond_the_limit_are_refused_and_usage_tells(tenant: Tenant) -> None:
    tenant.server.first_rows(f"INSERT INTO limits VALUES ({tenant.tenant_id}, 'jobs', 2)")
    assert [tenant.put(name).status for name in ("a", "b", "c")] == [201, 201, 409]
    assert tenant.put("a", CRON_JOB | {"timeout": "5s"}).status == 200
    usage = tenant.get("/v1/usage").json
    assert usage["limits"] == {"requests_per_s": 5_000, "jobs": 2, "starts_per_s": 50_000}
    assert usage["used"]["jobs"] == 2
    assert usage["used"]["requests_per_s"] >= 1


def test_signing_secrets_are_rotated_and_the_old_one_stays_for_a_while(tenant: Tenant) -> None:
    (before,) = tenant.get("/v1/signing-secrets").json["signing_secrets"]
    assert before["secret"].startswith("whsec_")
    assert before["retires_at"] is None
    rotated = tenant.call("POST", "/v1/signing-secrets:rotate", {"keep_old_for": "1h"}).json["signing_secrets"]
    assert [secret["retires_at"] is None for secret in rotated] == [True, False]
    assert rotated[1]["secret"] == before["secret"]
    again = tenant.call("POST", "/v1/signing-secrets:rotate", {"keep_old_for": "0s"}).json["signing_secrets"]
    assert len(again) == 1
    assert tenant.get("/v1/signing-secrets").json["signing_secrets"] == again
