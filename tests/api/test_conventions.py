"""What holds for every call: keys, methods, media types, sizes, and bodies that are no JSON."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.api import CRON_JOB, ApiServer, Tenant

PROBLEM_KEYS = {"type", "title", "status", "detail"}


def assert_problem(reply: Any, status: int) -> None:
    assert reply.status == status, reply
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert reply.json.keys() >= PROBLEM_KEYS
    assert reply.json["status"] == status


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Basic abc", "Bearer", "Bearer ", "Bearer sz_unknown", "Bearer " + "x" * 5_000, "Bearer sz_\xff"],
)
def test_p9_without_a_valid_key_nothing_is_answered(tenant: Tenant, authorization: str | None) -> None:
    tenant.key = None
    reply = tenant.call(
        "GET", "/v1/jobs", headers={"Authorization": authorization} if authorization is not None else {}
    )
    assert_problem(reply, 401)
    assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def test_the_scheme_of_the_key_may_be_spelled_in_any_case(tenant: Tenant) -> None:
    assert tenant.call("GET", "/v1/jobs", headers={"Authorization": f"bearer {tenant.key}"}).status == 200


def test_only_the_hash_of_a_key_is_stored(tenant: Tenant, api_server: ApiServer) -> None:
    assert tenant.key is not None
    stored = api_server.service.tenants
    assert tenant.key.startswith("sz_")
    assert tenant.key not in repr(vars(stored))


def test_a_wrong_method_is_told_which_are_allowed(tenant: Tenant) -> None:
    reply = tenant.call("POST", "/v1/jobs/a")
    assert_problem(reply, 405)
    assert {"GET", "PUT", "DELETE"} <= set(reply.headers["Allow"].split(", "))
    options = tenant.call("OPTIONS", "/v1/jobs/a")
    assert (options.status, options.headers["Allow"]) == (204, reply.headers["Allow"])


def test_head_answers_like_get_without_a_body(tenant: Tenant) -> None:
    tenant.put("head")
    got, head = tenant.get("/v1/jobs/head"), tenant.call("HEAD", "/v1/jobs/head")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["ETag"] == got.headers["ETag"]
    assert head.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/jobs/", "/v1/job", "/v1/jobs/a/b", "/v1/jobs//runs", "/v2/jobs"])
def test_a_url_that_is_none_answers_404(tenant: Tenant, path: str) -> None:
    assert_problem(tenant.get(path), 404)


@pytest.mark.parametrize("accept", ["text/html", "application/xml, text/*", "application/json;q=0", "image/*, */*;q=0"])
def test_an_answer_in_another_media_type_is_refused(tenant: Tenant, accept: str) -> None:
    assert_problem(tenant.call("GET", "/v1/jobs", headers={"Accept": accept}), 406)


@pytest.mark.parametrize(
    "accept", ["*/*", "application/*", "text/html, */*;q=0.1", "APPLICATION/JSON", "application/json;v=1"]
)
def test_an_accepted_media_type_is_answered(tenant: Tenant, accept: str) -> None:
    assert tenant.call("GET", "/v1/jobs", headers={"Accept": accept}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
def test_a_body_of_another_media_type_is_refused(tenant: Tenant, headers: dict[str, str]) -> None:
    assert_problem(tenant.call("PUT", "/v1/jobs/a", CRON_JOB, headers), 415)
    assert tenant.get("/v1/jobs/a").status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nul", b"{} {}", b'{"a":1,}', b"{'a':1}", b'\xef\xbb\xbf{}', b"\xff", b'{"a":"\xff"}',
        b'{"a":"\\ud800"}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":01}', b'{"a":"\x00"}',
        b'{"a":1,"a":1}', b'{"a":{"b":1,"\\u0062":2}}', b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70,
    ],
)  # fmt: skip
def test_what_is_not_strict_json_answers_400(tenant: Tenant, body: bytes) -> None:
    assert_problem(tenant.call("PUT", "/v1/jobs/a", body), 400)
    assert tenant.get("/v1/jobs/a").status == 404


def test_a_body_over_the_limit_answers_413_with_and_without_a_declared_length(tenant: Tenant) -> None:
    body = b" " * (3 << 20)
    assert_problem(tenant.call("PUT", "/v1/jobs/a", body), 413)
    connection = http.client.HTTPConnection("127.0.0.1", tenant.server.port, timeout=20)
    headers = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
    pieces = (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    connection.request("PUT", "/v1/jobs/a", pieces, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 413), ({"Authorization": "Bearer sz_wrong"}, 401), ({"Content-Type": "text/plain"}, 415)],
)
def test_a_body_that_is_refused_unread_does_not_cost_its_sender_the_answer(
    tenant: Tenant, headers: dict[str, str], status: int
) -> None:
    """It reads only when all is sent, and the connection is closed after the answer: what is unread then resets it."""
    body = b" " * (8 << 20)
    for _ in range(3):
        reply = tenant.call("PUT", "/v1/jobs/a", body, {"Connection": "close", **headers})
        assert_problem(reply, status)


TIMES = ["0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999-23:59",
         "0001-01-01T00:00:00%2B23:59", "2016-12-31T23:59:60Z", "2026-02-29T00:00:00Z", "10000-01-01T00:00:00Z",
         "2026-12-01", "2026-12-01T24:00:00Z", "1969-12-31T23:59:59Z"]  # fmt: skip


@pytest.mark.parametrize("time", TIMES)
def test_the_ends_of_the_calendar_are_answered_or_refused_in_every_time_field(tenant: Tenant, time: str) -> None:
    tenant.put("j")
    text = unquote(time)
    calls: list[tuple[str, str, object]] = [
        ("GET", f"/v1/jobs?next_run_before={time}", None),
        ("GET", f"/v1/jobs/j/runs?scheduled_from={time}", None),
        ("GET", f"/v1/jobs/j/runs?scheduled_to={time}", None),
        ("GET", f"/v1/dead-letters?scheduled_from={time}", None),
        ("GET", f"/v1/dead-letters?scheduled_to={time}", None),
        ("POST", "/v1/dead-letters:retry", {"scheduled_from": text, "scheduled_to": text}),
        ("GET", f"/v1/jobs/j/runs/{time}", None),
        ("POST", f"/v1/jobs/j/runs/{time}:cancel", None),
        ("POST", f"/v1/jobs/j/runs/{time}:retry", None),
        ("POST", "/v1/cron:preview", {"cron": "0 0 * * *", "after": text}),
        ("PUT", "/v1/jobs/start", CRON_JOB | {"schedule": {"cron": "0 0 * * *", "start_at": text}}),
        ("PUT", "/v1/jobs/end", CRON_JOB | {"schedule": {"cron": "0 0 * * *", "end_at": text}}),
        ("PUT", "/v1/jobs/once", CRON_JOB | {"schedule": {"run_at": text}}),
    ]
    for method, path, body in calls:
        reply = tenant.call(method, path, body)
        assert reply.status in (200, 201, 404, 422), (method, path, reply)


def test_a_request_id_is_given_back_or_made(tenant: Tenant) -> None:
    assert tenant.call("GET", "/v1/jobs", headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    made = tenant.call("GET", "/v1/jobs", headers={"X-Request-Id": "not an id"}).headers["X-Request-Id"]
    assert made not in ("", "not an id")


@pytest.mark.parametrize(
    "query",
    ["page_size=0", "page_size=1001", "page_size=x", "page_size=%D9%A3", "state=done", "label=x", "next_run_before=now",
     "unknown=1", "page_token=", "page_token=AAAA", "page_token=%C3%A9", "a", "%FF=1"],
)  # fmt: skip
def test_a_query_that_is_wrong_is_refused(tenant: Tenant, query: str) -> None:
    assert tenant.get(f"/v1/jobs?{query}").status in (400, 422)


def test_every_fault_is_listed_with_its_pointer(tenant: Tenant) -> None:
    reply = tenant.put(
        "bad",
        {
            "schedule": {"cron": "61 * * * *", "time_zone": "Europe/Pari", "start_at": "2026-02-30T00:00:00Z"},
            "target": {"http": {"url": "ftp://example.com", "method": "post", "headers": {"Host": "x", "A": 1}}},
            "priority": "urgent",
            "timeout": "2h",
            "retry": {"max_attempts": 0, "backof": "1s"},
            "labels": {"ok": 1, "a b": "c"},
            "paused": "yes",
            "descripton": "x",
        },
    )
    assert_problem(reply, 422)
    errors = reply.json["errors"]
    assert {error["pointer"] for error in errors} >= {
        "/schedule/start_at", "/target/http/url", "/target/http/method", "/target/http/headers/A", "/priority",
        "/retry/max_attempts", "/retry/backof", "/labels/ok", "/labels/a b", "/paused", "/descripton",
    }  # fmt: skip
    assert {"pointer": "/descripton", "detail": '"descripton" is no field here', "example": "description"} in errors
    assert tenant.get("/v1/jobs/bad").status == 404


LAST_SECOND = "9999-12-31T23:59:59Z"


@pytest.mark.parametrize(
    ("schedule", "pointer"),
    [
        ({"cron": "0 0 30 2 *"}, "/schedule/cron"),
        ({"cron": "0 9 * * *", "time_zone": "europe/paris"}, "/schedule/time_zone"),
        ({"cron": "@every 5m"}, "/schedule/cron"),
        ({"cron": "0 9 * * *", "end_at": "2001-01-01T00:00:00Z"}, "/schedule/end_at"),
        (
            {"cron": "0 9 * * *", "start_at": "2040-01-01T00:00:00Z", "end_at": "2030-01-01T00:00:00Z"},
            "/schedule/end_at",
        ),
        ({"cron": "0 9 * * *", "start_at": LAST_SECOND}, "/schedule/start_at"),
        ({"cron": "0 9 * * *", "start_at": LAST_SECOND, "end_at": LAST_SECOND}, "/schedule/end_at"),
        ({"cron": "0 9 * * *", "run_at": "2030-01-01T00:00:00Z"}, "/schedule"),
        ({}, "/schedule"),
        ({"run_at": "0001-01-01T00:00:00Z"}, "/schedule/run_at"),
        ({"run_at": "9999-12-31T23:59:59Z"}, "/schedule/run_at"),
        ({"run_at": "9999-12-31T23:59:59-23:59"}, "/schedule/run_at"),
        ({"run_at": "2016-12-31T23:59:60Z"}, "/schedule/run_at"),
        ({"run_at": "2027-01-01T00:00:00"}, "/schedule/run_at"),
        ({"run_at": "2027-01-01 00:00:00Z"}, "/schedule/run_at"),
        ({"run_at": "2027-01-01T00:00:00.5Z"}, "/schedule/run_at"),
        ({"run_at": "2027-01-01T00:00:00.0000001Z"}, "/schedule/run_at"),
        ({"run_at": 1_800_000_000}, "/schedule/run_at"),
        ("0 9 * * *", "/schedule"),
    ],
)
def test_a_schedule_that_is_wrong_is_refused_where_it_is_wrong(tenant: Tenant, schedule: object, pointer: str) -> None:
    reply = tenant.put("bad", CRON_JOB | {"schedule": schedule})
    assert_problem(reply, 422)
    assert pointer in [error["pointer"] for error in reply.json["errors"]], reply.json


def test_what_is_echoed_is_escaped_and_cut(tenant: Tenant) -> None:
    reply = tenant.put("bad", CRON_JOB | {"priority": "<script>" + "x" * 1_000})
    assert b"<script>" not in reply.body
    assert len(reply.body) < 600


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["schedule", "target", "priority", "timeout", "retry", "missed_runs", "max_catch_up", "overlap", "on_failure",
     "late_after", "labels", "paused", "description", "name", "version"]
)  # fmt: skip
SCHEDULES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("cron", "run_at", "time_zone", "start_at", "end_at"), JSON)
)
HTTP = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("url", "method", "body", "body_base64"), JSON),
        "headers": st.dictionaries(st.text(), JSON),
    },
)
TARGETS = st.fixed_dictionaries({}, optional={"http": HTTP, "function": JSON})
JOBS = st.dictionaries(FIELDS, JSON, max_size=6).flatmap(
    lambda more: st.fixed_dictionaries({"schedule": SCHEDULES | JSON, "target": TARGETS | JSON}).map(
        lambda job: job | more
    )
)
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(job=JSON | JOBS)
def test_no_json_value_makes_a_server_error(tenant: Tenant, job: object) -> None:
    body = orjson.dumps(job, default=float, option=orjson.OPT_NON_STR_KEYS) if not _too_large(job) else b"{}"
    assert tenant.call("PUT", "/v1/jobs/fuzz", body).status in (200, 201, 400, 422)


@FUZZ
@given(body=st.binary(max_size=200))
def test_no_bytes_make_a_server_error(tenant: Tenant, body: bytes) -> None:
    assert tenant.call("PUT", "/v1/jobs/fuzz", body).status in (400, 422)


@FUZZ
@given(
    path=st.text(
        st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters="#?"), max_size=40
    )
)
def test_no_path_makes_a_server_error(tenant: Tenant, path: str) -> None:
    assert tenant.get(f"/v1/{path}").status < 500


def _too_large(value: object) -> bool:
    """orjson writes integers of 64 bits only."""
    if isinstance(value, dict):
        return any(map(_too_large, value.values()))
    if isinstance(value, list):
        return any(map(_too_large, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64
