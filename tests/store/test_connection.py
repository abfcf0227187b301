"""Connections on a real server: whatever becomes of a call, the next answer on the pool is always one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.config import Dsn
from engine.errors import CommitUnknown, Conflict, PoolExhausted, StoreUnavailable
from engine.store.connection import Connection, Duplicate, MissingDay
from engine.store.shard import Shard
from tests.support.wait import until_async


def with_shard(dsn: Dsn, body: Callable[[Shard], Awaitable[None]], connections_max: int = 1) -> None:
    async def main() -> None:
        shard = Shard(dsn, 0, connections_max=connections_max)
        try:
            await body(shard)
        finally:
            await shard.close()

    asyncio.run(main())


async def echo(shard: Shard, number: int, slow_s: float = 0) -> int:
    async with shard.connection() as connection:
        answer = await connection.run(f"SELECT {number}, SLEEP({slow_s})".encode())
        return int(answer.rows[0][0])


def test_a_call_cancelled_at_every_millisecond_never_leaves_its_answer_to_the_next(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        for number in range(40):
            call = asyncio.ensure_future(echo(shard, number, slow_s=0.02))
            await asyncio.wait([call], timeout=number / 1000)
            call.cancel()
            await asyncio.wait([call])
            assert await echo(shard, 1_000 + number) == 1_000 + number

    with_shard(shard_dsn, body)


def test_a_call_that_times_out_closes_its_connection(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        with pytest.raises(StoreUnavailable, match="no answer in 30 ms"):
            async with shard.connection() as connection:
                await connection.run(b"SELECT SLEEP(5)", timeout_ms=30)
        assert not connection.usable
        assert await echo(shard, 7) == 7

    with_shard(shard_dsn, body)


def test_a_full_pool_says_so_within_its_bound(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        shard._pool_wait_ms = 50
        async with shard.connection():
            with pytest.raises(PoolExhausted, match="busy for 50 ms"):
                await echo(shard, 1)
        assert await echo(shard, 2) == 2

    with_shard(shard_dsn, body)


def test_a_connection_that_the_server_closed_while_idle_is_replaced(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        async with shard.connection() as first:
            session = (await first.run(b"SELECT CONNECTION_ID()")).rows[0][0]
        killer = await Connection.open(shard_dsn, 60)
        await killer.run(f"KILL {session}".encode())
        await killer.close()
        await until_async(lambda: first.lost)
        assert await echo(shard, 3) == 3

    with_shard(shard_dsn, body)


def test_a_transaction_whose_connection_is_killed_before_commit_is_of_unknown_outcome(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        killer = await Connection.open(shard_dsn, 60)
        with pytest.raises(CommitUnknown):
            async with shard.transaction() as connection:
                session = (await connection.run(b"SELECT CONNECTION_ID()")).rows[0][0]
                await killer.run(f"KILL {session}".encode())
        assert await echo(shard, 4) == 4
        await killer.close()

    with_shard(shard_dsn, body)


def test_a_block_that_fails_rolls_back_and_keeps_the_connection(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        await _insert_floor(shard)
        with pytest.raises(ZeroDivisionError):
            async with shard.transaction() as connection:
                await connection.run(b"UPDATE floor SET floor_at = 99")
                raise ZeroDivisionError
        async with shard.connection() as again:
            assert again is connection
            assert (await again.run(b"SELECT floor_at FROM floor")).rows == ((1,),)

    with_shard(shard_dsn, body)


async def _insert_floor(shard: Shard) -> None:
    async with shard.connection() as connection:
        await connection.run(b"INSERT INTO floor (id, floor_at) VALUES (1, 1)")


def test_a_duplicate_and_a_missing_day_are_answers_and_the_transaction_goes_on(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        await _insert_floor(shard)
        async with shard.transaction() as connection:
            with pytest.raises(Duplicate):
                await connection.run(b"INSERT INTO floor (id, floor_at) VALUES (1, 2)")
            with pytest.raises(MissingDay):
                await connection.run(
                    b"INSERT INTO attempts (partition_id, scheduled_at, job_id, attempt, outcome, finished_at)"
                    b" VALUES (1, 1, 1, 1, 1, 1)"
                )
            await connection.run(b"UPDATE floor SET floor_at = 3")
        assert (await shard.execute("shard_now")).rows
        async with shard.connection() as connection:
            assert (await connection.run(b"SELECT floor_at FROM floor")).rows == ((3,),)

    with_shard(shard_dsn, body)


def test_two_transactions_that_lock_in_opposite_order_both_end_well_when_retried(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        async with shard.connection() as connection:
            await connection.run(b"INSERT INTO marks VALUES (1, 0), (2, 0)")
        both_hold_one = asyncio.Barrier(2)
        tries = 0

        async def lock(first: int, second: int) -> None:
            nonlocal tries

            async def transaction() -> None:
                nonlocal tries
                tries += 1
                async with shard.transaction() as connection:
                    await _touch(connection, first)
                    if tries <= 2:
                        await both_hold_one.wait()
                    await _touch(connection, second)

            await shard.retrying(transaction)

        await asyncio.gather(lock(1, 2), lock(2, 1))
        assert tries > 2
        async with shard.connection() as connection:
            assert (await connection.run(b"SELECT mark_at FROM marks")).rows == ((2,), (2,))

    with_shard(shard_dsn, body, connections_max=2)


async def _touch(connection: Connection, partition_id: int) -> None:
    await connection.run(f"UPDATE marks SET mark_at = mark_at + 1 WHERE partition_id = {partition_id}".encode())


def test_a_race_that_is_lost_every_time_ends_in_a_conflict_after_a_bound(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        tries = 0

        async def transaction() -> None:
            nonlocal tries
            tries += 1
            raise Conflict("lost")

        with pytest.raises(Conflict):
            await shard.retrying(transaction)
        assert tries == 6

    with_shard(shard_dsn, body)


def test_found_rows_are_counted_and_not_only_changed_ones(shard_dsn: Dsn) -> None:
    async def body(shard: Shard) -> None:
        await _insert_floor(shard)
        async with shard.connection() as connection:
            assert (await connection.run(b"UPDATE floor SET floor_at = 1")).found == 1

    with_shard(shard_dsn, body)
