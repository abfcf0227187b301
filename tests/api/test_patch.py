"""PATCH: a merge patch on what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from api.job_patch import merge
from tests.support.api import CRON_JOB, Reply, Tenant

MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


def patched(tenant: Tenant, patch: object, **headers: str) -> Reply:
    return tenant.call("PATCH", "/v1/jobs/patched", patch, MERGE_PATCH | headers)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_standard(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


def test_a_patch_changes_what_it_names_and_null_brings_the_default_back(tenant: Tenant) -> None:
    tenant.put("patched", CRON_JOB | {"labels": {"a": "1", "b": "2"}, "timeout": "5s", "description": "x"})
    job = patched(tenant, {"labels": {"a": None, "c": "3"}, "timeout": None, "retry": {"max_attempts": 2}}).json
    assert job["labels"] == {"b": "2", "c": "3"}
    assert (job["timeout"], job["description"], job["retry"]["max_attempts"]) == ("30s", "x", 2)
    assert job["version"] == 2


def test_a_schedule_or_target_of_another_kind_replaces_what_is_there(tenant: Tenant) -> None:
    tenant.put("patched", CRON_JOB | {"target": {"http": {"url": "https://example.com/", "body": "text"}}})
    patched(tenant, {"schedule": {"run_at": "2027-01-01T00:00:00Z"}})
    assert tenant.job("patched")["schedule"] == {"run_at": "2027-01-01T00:00:00Z"}
    patched(tenant, {"schedule": {"cron": "@daily"}})
    assert tenant.job("patched")["schedule"] == {"cron": "@daily", "time_zone": "UTC"}
    assert patched(tenant, {"schedule": {"time_zone": "Asia/Tokyo"}}).json["schedule"]["cron"] == "@daily"
    assert (
        patched(tenant, {"target": {"http": {"body_base64": "AP8="}}}).json["target"]["http"]["body_base64"] == "AP8="
    )
    assert patched(tenant, {"target": {"function": {"name": "f"}}}).json["target"]["function"]["name"] == "f"


def test_a_patch_that_changes_nothing_writes_nothing(tenant: Tenant) -> None:
    tenant.put("patched")
    assert patched(tenant, {}).headers["ETag"] == patched(tenant, {"timeout": "30s"}).headers["ETag"]
    assert tenant.job("patched")["version"] == 1


def test_a_secret_header_stays_when_another_part_is_patched(tenant: Tenant) -> None:
    http = {"url": "https://example.com/", "headers": {"X-Key": {"value": "hunter2", "secret": True}}}
    before = tenant.put("patched", CRON_JOB | {"target": {"http": http}}).json
    after = patched(tenant, {"target": {"http": {"method": "PUT"}}}).json
    assert after["target"]["http"]["headers"] == before["target"]["http"]["headers"]


def test_a_patch_pauses_and_resumes(tenant: Tenant) -> None:
    tenant.put("patched")
    assert patched(tenant, {"paused": True}).json["state"] == "paused"
    assert patched(tenant, {"timeout": "5s"}).json["state"] == "paused"
    assert patched(tenant, {"paused": False}).json["state"] == "active"


def test_a_patch_is_held_to_preconditions_media_type_and_rules(tenant: Tenant) -> None:
    assert patched(tenant, {}).status == 404
    tenant.put("patched")
    assert patched(tenant, {}, **{"If-Match": '"0.1"'}).status == 412
    assert tenant.call("PATCH", "/v1/jobs/patched", {}).status == 415
    assert patched(tenant, []).status == 422
    assert patched(tenant, {"schedule": None, "x": 1}).status == 422
    assert tenant.job("patched")["version"] == 1
