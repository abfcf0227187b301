"""schemathesis over the whole document: no server error, and no answer that the document does not describe."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.openapi import document
from tests.support.api import ApiServer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

TIMEOUT_S = 60

schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def key(api_server: ApiServer) -> str:
    """A key of a tenant for all of it: what one call leaves behind is in the way of the next."""
    return str(api_server.tenant().key)


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_every_answer_is_described(case: Any, api_server: ApiServer, key: str) -> None:
    if isinstance(case.body, dict):
        case.body.pop("wait", None)  # a worker that asks for work may wait for it
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{api_server.port}",
        headers={"Authorization": f"Bearer {key}"},
        checks=CHECKS,
        timeout=TIMEOUT_S,
    )
