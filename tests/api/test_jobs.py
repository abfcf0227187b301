"""Jobs over HTTP: what is put is read, what is equal changes nothing, what is deleted is gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.clock import wall_ms
from engine.rules.timestamps import format_time, parse_time
from tests.support.api import CRON_JOB, ApiServer, Tenant


def in_seconds(seconds: int) -> str:
    """A whole second so far from now."""
    return format_time((wall_ms() // 1000 + seconds) * 1000)


def one_off(seconds: int) -> dict[str, Any]:
    return {"schedule": {"run_at": in_seconds(seconds)}, "target": CRON_JOB["target"]}


def test_a_job_that_was_put_is_read_with_its_defaults(tenant: Tenant) -> None:
    created = tenant.put("report")
    assert created.status == 201
    job = tenant.job("report")
    assert created.json == job | {"effective_from": job["next_run_at"], "clock_changes": []}
    assert (job["state"], job["priority"], job["overlap"], job["missed_runs"]) == (
        "active",
        "normal",
        "allow",
        "latest",
    )
    assert job["retry"] == {"max_attempts": 5, "backoff": "10s", "max_backoff": "1h", "max_age": "24h"}
    assert (job["timeout"], job["late_after"], job["paused"], job["labels"]) == ("30s", "60s", False, {})
    assert job["target"]["http"]["method"] == "POST"
    assert created.headers["ETag"] == f'"{job["job_id"]}.1"'


def test_the_next_run_of_a_cron_job_is_its_next_time(tenant: Tenant) -> None:
    tenant.put("each-second", CRON_JOB | {"schedule": {"cron": "* * * * * *"}})
    assert tenant.job("each-second")["next_run_at"] in (in_seconds(0), in_seconds(1))


def test_an_equal_put_answers_200_and_changes_nothing(tenant: Tenant) -> None:
    first = tenant.put("same")
    second = tenant.put("same", {**CRON_JOB, "timeout": "30000ms", "priority": "normal"})
    assert second.status == 200
    assert second.json == first.json
    assert second.headers["ETag"] == first.headers["ETag"]


def test_an_equal_put_of_a_time_long_past_answers_200(tenant: Tenant, api_server: ApiServer) -> None:
    job = one_off(60)
    run_at_ms = parse_time(job["schedule"]["run_at"])
    tenant.put("past", job)
    api_server.rows(
        f"UPDATE job_versions v JOIN jobs j USING (partition_id, job_id) SET j.next_run_at = NULL,"
        f" v.definition = REPLACE(v.definition, '{run_at_ms}', '1000000000000') WHERE tenant_id = {tenant.tenant_id}"
    )
    long_past = {**job, "schedule": {"run_at": "2001-09-09T01:46:40Z"}}
    again = tenant.put("past", long_past)
    assert (again.status, again.json["state"], again.json["version"]) == (200, "finished", 1)
    assert tenant.put("past", long_past | {"timeout": "5s"}).status == 200
    assert tenant.put("other", long_past).status == 422


@pytest.mark.parametrize(
    "job",
    [
        CRON_JOB,
        {
            "schedule": {
                "cron": "0 0 9 * * MON-FRI",
                "time_zone": "America/New_York",
                "start_at": "2026-01-01T00:00:00+02:00",
                "end_at": "9999-12-31T23:59:59Z",
            },
            "target": {
                "http": {
                    "url": "https://example.com:443/a?b=c",
                    "method": "PUT",
                    "headers": {
                        "X-Zed": "1",
                        "Content-Type": "text/plain",
                        "X-Key": {"value": "s3cret", "secret": True},
                    },
                    "body": "Grüße 🎉 \\ \u0000 \"quoted\" 'single'",
                }
            },
            "priority": "critical",
            "timeout": "90s",
            "retry": {"max_attempts": 1, "backoff": "1ms", "max_backoff": "2d", "max_age": "1h"},
            "missed_runs": "all",
            "max_catch_up": 7,
            "overlap": "wait",
            "on_failure": {"url": "https://example.com/failed"},
            "late_after": "5m",
            "labels": {"team": "billing", "a/b": "ü"},
            "paused": True,
            "description": "what it is for",
        },
        {
            "schedule": {"cron": "@daily"},
            "target": {"http": {"url": "https://example.com/", "body_base64": "AP8="}},
        },
        {"schedule": {"cron": "@daily"}, "target": {"function": {"name": "f", "payload": {"a": [1, None, 0.5]}}}},
        {"schedule": {"cron": "@daily"}, "target": {"function": {"name": "f"}}},
    ],
)
def test_what_was_read_can_be_written_back(tenant: Tenant, job: dict[str, Any]) -> None:
    assert tenant.put("round", job).status == 201
    read = tenant.job("round")
    again = tenant.put("round", read)
    assert again.status == 200, again
    assert again.json["updated_at"] == read["updated_at"]
    edited = tenant.put("round", read | {"description": "edited"})
    assert edited.status == 200, edited
    assert tenant.job("round") == read | {
        "description": "edited",
        "version": 2,
        "updated_at": edited.json["updated_at"],
    }


def test_a_secret_header_is_never_answered_and_kept_by_its_fingerprint(tenant: Tenant, api_server: ApiServer) -> None:
    secret = {"url": "https://example.com/", "headers": {"X-Key": {"value": "hunter2", "secret": True}}}
    created = tenant.put("secret", CRON_JOB | {"target": {"http": secret}})
    assert b"hunter2" not in created.body
    shown = created.json["target"]["http"]["headers"]["X-Key"]
    assert shown["secret"] is True
    kept = {"url": "https://example.com/other", "headers": {"X-Key": shown}}
    assert tenant.put("secret", CRON_JOB | {"target": {"http": kept}}).status == 200
    stored = api_server.rows("SELECT definition FROM job_versions WHERE version = 2 AND definition LIKE '%/other%'")
    assert b"hunter2" not in stored[0][0]
    forged = {"url": "https://example.com/", "headers": {"X-Key": {"secret": True, "fingerprint": "0" * 16}}}
    refused = tenant.put("secret", CRON_JOB | {"target": {"http": forged}})
    assert refused.json["errors"][0]["pointer"] == "/target/http/headers/X-Key"


def test_an_edit_moves_the_etag_and_says_from_which_run_on(tenant: Tenant) -> None:
    created = tenant.put("edited")
    edited = tenant.put("edited", CRON_JOB | {"timeout": "5s"})
    assert edited.status == 200
    assert edited.headers["ETag"] == f'"{created.json["job_id"]}.2"'
    assert edited.json["effective_from"] == created.json["next_run_at"]
    rescheduled = tenant.put("edited", CRON_JOB | {"schedule": {"run_at": in_seconds(3600)}})
    assert rescheduled.json["effective_from"] == rescheduled.json["next_run_at"]


def test_preconditions_are_held(tenant: Tenant) -> None:
    etag = tenant.put("held", **{"If-None-Match": "*"}).headers["ETag"]
    assert tenant.put("held", **{"If-None-Match": "*"}).status == 412
    changed = CRON_JOB | {"timeout": "5s"}
    assert tenant.put("held", changed, **{"If-Match": '"0.1"'}).status == 412
    assert tenant.put("held", changed, **{"If-Match": f'"0.1", {etag}'}).status == 200
    assert tenant.put("held", CRON_JOB, **{"If-Match": etag}).status == 412
    assert tenant.put("held", CRON_JOB, **{"If-Match": f"W/{etag}"}).status == 412
    assert tenant.put("absent", **{"If-Match": "*"}).status == 412
    assert tenant.put("held", **{"If-Match": "nonsense"}).status == 400
    assert tenant.call("DELETE", "/v1/jobs/held", headers={"If-Match": etag}).status == 412
    assert tenant.get("/v1/jobs/absent").status == 404


def test_a_deleted_job_is_gone_and_its_name_is_free(tenant: Tenant) -> None:
    first = tenant.put("gone").json
    deleted = tenant.call("DELETE", "/v1/jobs/gone")
    assert (deleted.status, deleted.json["job_id"]) == (200, first["job_id"])
    assert (deleted.json["state"], deleted.json["next_run_at"]) == ("deleted", None)
    assert tenant.call("DELETE", "/v1/jobs/gone").status == 404
    assert tenant.get("/v1/jobs/gone").status == 404
    assert tenant.get("/v1/jobs/gone/runs").json == {"runs": [], "next_page_token": None}
    again = tenant.put("gone")
    assert again.status == 201
    assert again.json["job_id"] > first["job_id"]


def test_of_many_equal_puts_at_once_one_creates_and_all_agree(tenant: Tenant) -> None:
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: tenant.put("raced"), range(32)))
    assert sorted({reply.status for reply in replies}) == [200, 201]
    assert sum(reply.status == 201 for reply in replies) == 1
    assert len({reply.json["job_id"] for reply in replies}) == 1


def test_of_many_different_edits_at_once_each_is_a_version(tenant: Tenant, api_server: ApiServer) -> None:
    tenant.put("edited-at-once")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: tenant.put("edited-at-once", CRON_JOB | {"timeout": f"{n}s"}), range(1, 9)))
    assert {reply.status for reply in replies} == {200}
    job = tenant.job("edited-at-once")
    assert job["version"] == 9
    versions = api_server.rows(f"SELECT COUNT(*) FROM job_versions WHERE job_id = {int(job['job_id'], 16)}")
    assert sum(row[0] for row in versions) == 9


def test_p9_another_tenants_job_answers_like_one_that_never_was(tenant: Tenant, api_server: ApiServer) -> None:
    tenant.put("mine")
    other = api_server.tenant()
    never = other.get("/v1/jobs/never")
    for path in ("/v1/jobs/mine", "/v1/jobs/mine/runs", "/v1/jobs/mine/runs/2026-01-01T00:00:00Z"):
        reply = other.get(path)
        assert (reply.status, reply.json["type"]) == (404, never.json["type"])
    assert other.get("/v1/jobs").json["jobs"] == []
    assert other.call("DELETE", "/v1/jobs/mine").status == 404
    assert tenant.job("mine")["state"] == "active"


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "9" * 128, "Z-"])
def test_every_name_of_the_rule_works_everywhere(tenant: Tenant, name: str) -> None:
    assert tenant.put(name).status == 201
    assert tenant.job(name)["name"] == name
    assert name in [job["name"] for job in tenant.get(f"/v1/jobs?name_prefix={name}").json["jobs"]]
    assert tenant.get(f"/v1/jobs/{name}/runs").status == 200
    assert tenant.call("DELETE", f"/v1/jobs/{name}").status == 200


@pytest.mark.parametrize(
    "name",
    ["a" * 129, "-a", ".", "a%2Fb", "a%252Fb", "%C3%BC", "a%20b", "a%00", "a+b", "a:b", "a%3Ab", ":", "..", "%FF"],
)
def test_a_name_outside_the_rule_is_refused_everywhere(tenant: Tenant, name: str) -> None:
    for method, path in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/runs")):
        body = CRON_JOB if method == "PUT" else None
        reply = tenant.call(method, f"/v1/jobs/{name}{path}", body)
        assert reply.status == (400 if name == "%FF" else 422), (method, path, reply)
    assert tenant.get("/v1/jobs").json["jobs"] == []


def test_a_paused_job_has_no_next_run_and_an_absent_field_leaves_it_paused(tenant: Tenant) -> None:
    assert tenant.put("paused", CRON_JOB | {"paused": True}).json["state"] == "paused"
    edited = tenant.put("paused", CRON_JOB | {"timeout": "5s"})
    assert (edited.json["state"], edited.json["next_run_at"], edited.json["effective_from"]) == ("paused", None, None)
    resumed = tenant.put("paused", CRON_JOB | {"timeout": "5s", "paused": False})
    assert resumed.json["state"] == "active"
    assert resumed.json["next_run_at"] is not None


def test_a_one_off_job_five_minutes_past_is_taken_and_one_older_is_not(tenant: Tenant) -> None:
    assert tenant.put("late", one_off(-290)).status == 201
    assert tenant.put("too-late", one_off(-310)).status == 422
    assert tenant.put("far", one_off(365 * 86_400 - 60)).status == 201
    assert tenant.put("too-far", one_off(367 * 86_400)).status == 422
