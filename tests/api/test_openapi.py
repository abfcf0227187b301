"""The document: valid, complete, and true of every answer; its page reaches no other host."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from api.calls import CALLS, JOB_EXAMPLE
from api.endpoint import Endpoint
from api.openapi import document
from api.routes import routes
from tests.support.api import CRON_JOB, ApiServer, Tenant

UNDOCUMENTED = {"/openapi.json", "/docs"}


def test_the_document_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(document()).validate()


def test_no_call_is_undocumented_and_no_documented_one_is_missing(api_server: ApiServer) -> None:
    served = set()
    for route in routes(api_server.service):
        assert isinstance(route, Route)
        path = re.sub(r":name\}", "}", route.path)
        endpoint = route.endpoint
        methods = set(endpoint.handlers) - {"HEAD"} if isinstance(endpoint, Endpoint) else {"GET"}
        served |= {(method, path) for method in methods if path not in UNDOCUMENTED}
    assert served == set(CALLS)


def test_every_example_is_accepted(tenant: Tenant) -> None:
    assert tenant.put("example", JOB_EXAMPLE).status == 201
    for (method, path), doc in CALLS.items():
        if doc.example is None or method == "PUT":
            continue
        tenant.put("example", JOB_EXAMPLE)
        reply = tenant.call(method, path.replace("{name}", "example"), doc.example, {"Content-Type": doc.body_media})
        assert reply.status in doc.answers, (method, path, reply)


def schema_of(reply: Any, method: str, path: str) -> dict[str, Any]:
    """The schema that the document has for this answer."""
    said = document()["paths"][path][method.lower()]["responses"][str(reply.status)]
    (content,) = said["content"].values()
    return {**content["schema"], "components": document()["components"]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/jobs/{name}", None),
        ("GET", "/v1/jobs", None),
        ("PUT", "/v1/jobs/{name}", CRON_JOB),
        ("PUT", "/v1/jobs/{name}", {"schedule": 1}),
        ("GET", "/v1/jobs/{name}/runs", None),
        ("POST", "/v1/jobs/{name}:run", {}),
        ("POST", "/v1/jobs/{name}:pause", {"note": "x"}),
        ("POST", "/v1/jobs:batch", {"puts": [{"name": "a", "job": CRON_JOB}, {"name": "b", "job": {}}]}),
        ("GET", "/v1/dead-letters", None),
        ("POST", "/v1/dead-letters:retry", {}),
        ("POST", "/v1/cron:preview", {"cron": "30 2 * * *", "time_zone": "Europe/Paris", "n": 400}),
        ("GET", "/v1/clock-changes", None),
        ("GET", "/v1/forecast", None),
        ("GET", "/v1/usage", None),
        ("GET", "/v1/signing-secrets", None),
        ("DELETE", "/v1/jobs/{name}", None),
        ("GET", "/livez", None),
        ("GET", "/readyz", None),
    ],
)
def test_answers_are_what_the_document_says(tenant: Tenant, method: str, path: str, body: object) -> None:
    tenant.put("j", CRON_JOB | {"schedule": {"cron": "30 2 * * *", "time_zone": "America/New_York"}})
    reply = tenant.call(method, path.replace("{name}", "j"), body)
    jsonschema.Draft202012Validator(schema_of(reply, method, path)).validate(reply.json)


def test_the_page_is_readable_without_a_key_and_reaches_no_other_host(tenant: Tenant) -> None:
    tenant.key = None
    page = tenant.call("GET", "/docs", headers={"Accept": "text/html"})
    assert page.status == 200
    text = page.body.decode()
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert "@import" not in text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for method, path in CALLS:
        assert f"{method} {path}" in text
    assert tenant.call("GET", "/openapi.json").json == document()
