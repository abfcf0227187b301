"""Fixtures of all tests: real MySQL, started once, when the first test asks for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from engine.config import Dsn
from engine.local.mysqld import MysqlServer
from tests.support.mysql import SchemaPool, running_server

# The key of secrets is this user's own where none is given; tests have one that is gone with them.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="secondzero-tests-config-")


@pytest.fixture(scope="session", autouse=True)
def own_config_folder() -> Iterator[None]:
    yield
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MysqlServer]:
    """The session's server. A test that stops or breaks one starts its own with `running_server`."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def schema_pool(mysql_server: MysqlServer) -> SchemaPool:
    return SchemaPool(mysql_server)


@pytest.fixture
def shard_dsn(schema_pool: SchemaPool) -> Iterator[Dsn]:
    """A clean, migrated first shard: every table is there, only `migrations` has rows."""
    with schema_pool.schema() as dsn:
        yield dsn


@pytest.fixture
def two_shards(schema_pool: SchemaPool) -> Iterator[tuple[Dsn, Dsn]]:
    """Two clean shards, the first of them first: two databases, of one server, since nothing may join them."""
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second:
        yield first, second
