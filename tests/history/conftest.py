"""Fixtures of the history's tests: real Cassandra, started once, when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.contact import Contact
from engine.local.cassandra import CassandraServer
from tests.support.cassandra import always_quiet, new_keyspace, running_node


@pytest.fixture(scope="session")
def cassandra_node() -> Iterator[CassandraServer]:
    """The session's node; a test that stops it starts it again."""
    with running_node() as node:
        yield node


@pytest.fixture
def contact(cassandra_node: CassandraServer) -> Contact:
    """A history of its own."""
    return new_keyspace(cassandra_node)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    always_quiet(monkeypatch)
