"""Fixtures of the API's tests: one served fleet for each file, a tenant for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import ApiServer, Tenant, served
from tests.support.mysql import SchemaPool


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    """An API over two shards."""
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second, served([first, second]) as server:
        yield server


@pytest.fixture
def tenant(api_server: ApiServer) -> Tenant:
    """A tenant that nobody else uses."""
    return api_server.tenant()
