"""The pool hands out clean schemas, whatever the test before left behind."""

import asyncio

import pytest

from engine.config import Dsn
from tests.support.mysql import SchemaPool, query

DIRT = [
    "INSERT INTO floor (id, floor_at) VALUES (1, 5)",
    "ALTER TABLE runs ADD PARTITION (PARTITION day_1 VALUES LESS THAN (86400000))",
    "ALTER TABLE runs PARTITION BY RANGE (scheduled_at) (PARTITION other VALUES LESS THAN (7))",
    "DROP TABLE active",
]


@pytest.mark.parametrize("dirt", DIRT)
def test_a_schema_is_clean_whatever_was_left_in_it(schema_pool: SchemaPool, dirt: str) -> None:
    with schema_pool.schema() as dsn:
        before = asyncio.run(_content(dsn))
        asyncio.run(query(dsn, dirt))
        assert asyncio.run(_content(dsn)) != before
    with schema_pool.schema() as again:
        assert again == dsn
        assert asyncio.run(_content(again)) == before


async def _content(dsn: Dsn) -> object:
    parts = await query(
        dsn, "SELECT table_name, partition_name FROM information_schema.partitions WHERE table_schema = DATABASE()"
    )
    rows = await query(dsn, "SELECT * FROM floor")
    return sorted(parts, key=str), rows
