"""Fixtures of the tenants' package: a served fleet for each file, and faults between it and the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from secondzero_client import Client, RetryPolicy
from tests.api.conftest import api_server, tenant
from tests.support.api import ApiServer, Tenant
from tests.support.relay import Relay

__all__ = ["api_server", "tenant"]

QUICK = RetryPolicy(total_s=10, first_pause_s=0.01, pause_s_max=0.05)


@pytest.fixture
def relay(api_server: ApiServer) -> Iterator[Relay]:
    """The way to the API."""
    with Relay(api_server.port) as relay:
        yield relay


@pytest.fixture
def client(relay: Relay, tenant: Tenant) -> Iterator[Client]:
    with Client(relay.url, tenant.key, retries=QUICK) as client:
        yield client
