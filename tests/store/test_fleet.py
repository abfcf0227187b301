"""A fleet is created once, goes on where its creation was killed, and refuses what does not fit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.errors import OperatorError
from engine.store.connection import Connection
from engine.store.fleet import check_fleet, create_fleet, refuse_other_fleet
from engine.store.shard import Shard
from tests.support.mysql import query

PARTITIONS = 7


def with_shards(dsns, act: Callable[[list[Shard]], Awaitable[object]]) -> object:
    async def main() -> object:
        shards = [Shard(dsn, index) for index, dsn in enumerate(dsns)]
        try:
            return await act(shards)
        finally:
            for shard in shards:
                await shard.close()

    return asyncio.run(main())


def created(dsns, partitions: int | None = PARTITIONS) -> object:
    return with_shards(dsns, lambda shards: create_fleet(shards, partitions))


def rows(dsn, text: str) -> list[tuple[object, ...]]:
    return asyncio.run(query(dsn, text))


def test_every_partition_has_one_place_with_its_mark_and_its_lease(two_shards):
    assert created(two_shards) is True
    for table in ("partitions", "marks", "leases"):
        found = [[row[0] for row in rows(dsn, f"SELECT partition_id FROM {table} ORDER BY 1")] for dsn in two_shards]
        assert found == [[0, 2, 4, 6], [1, 3, 5]]
    assert rows(two_shards[0], "SELECT COUNT(*) FROM leases WHERE worker_id IS NULL AND term = 0") == [(4,)]
    assert rows(two_shards[1], "SELECT floor_at < (SELECT MIN(mark_at) FROM marks) FROM floor") == [(1,)]
    assert created(two_shards) is False
    assert with_shards(two_shards, check_fleet).partition_count == PARTITIONS


@pytest.mark.parametrize("statements_done", range(10))
def test_a_creation_that_was_killed_goes_on(two_shards, monkeypatch, statements_done):
    writes = iter(range(1_000))
    run = Connection.run

    async def killed_before_one_of_them(self, text, *rest, **named):
        if text.startswith(b"INSERT") and next(writes) == statements_done:
            raise asyncio.CancelledError
        return await run(self, text, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "run", killed_before_one_of_them)
        with pytest.raises(asyncio.CancelledError):
            created(two_shards)
    assert created(two_shards) is True
    assert len({rows(dsn, "SELECT fleet_id FROM fleet")[0] for dsn in two_shards}) == 1
    assert [rows(dsn, "SELECT COUNT(*) FROM marks") for dsn in two_shards] == [[(4,)], [(3,)]]


def test_another_shard_or_partition_count_and_another_order_are_refused_and_nothing_changes(two_shards, schema_pool):
    created(two_shards)
    first, second = two_shards
    with schema_pool.schema(first=False) as third:
        for dsns, partitions, problem in (
            ([first], PARTITIONS, "created with shard count 2, now started with 1"),
            ([first, second, third], PARTITIONS, "created with shard count 2, now started with 3"),
            ([first, second], PARTITIONS + 1, "created with partition count 7, now started with 8"),
            ([second, first], PARTITIONS, "is number 2 of the fleet's shards, not 1"),
            ([third, second], PARTITIONS, "give the shards in their order"),
        ):
            with pytest.raises(OperatorError, match=problem) as caught:
                created(dsns, partitions)
            assert "\n" not in str(caught.value)
            with pytest.raises(OperatorError, match=problem):
                asyncio.run(refuse_other_fleet(dsns, partitions))
        assert rows(third, "SELECT COUNT(*) FROM fleet") == [(0,)]


def test_an_old_fleet_keeps_its_partition_count_where_none_is_given(two_shards):
    created(two_shards)
    assert created(two_shards, None) is False


def test_databases_that_are_not_there_yet_may_become_a_fleet(two_shards):
    new = [replace(dsn, database=f"new_{number}") for number, dsn in enumerate(two_shards)]
    asyncio.run(refuse_other_fleet(new, PARTITIONS))
    created(two_shards)
    with pytest.raises(OperatorError, match="give the shards in their order"):
        asyncio.run(refuse_other_fleet([new[0], two_shards[1]]))


def test_a_shard_of_another_fleet_is_refused(two_shards, schema_pool):
    created(two_shards)
    with schema_pool.schema() as other_first, schema_pool.schema(first=False) as other_second:
        created([other_first, other_second])
        with pytest.raises(OperatorError, match="belongs to another fleet"):
            created([two_shards[0], other_second])


def test_a_shard_without_a_fleet_says_what_to_do(two_shards):
    with pytest.raises(OperatorError, match="no fleet was created here; run: secondzero migrate"):
        with_shards(two_shards, check_fleet)
