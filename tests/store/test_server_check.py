"""The checks at the start, against a real server and one that only pretends."""

import asyncio

import pytest

from engine.clock import SystemClock
from engine.config import Dsn
from engine.errors import OperatorError
from engine.store.server_check import check_server
from tests.support.fake_mysql import fake_mysql
from tests.support.mysql import query

CLOSE_ENOUGH_MS = 200


def check(dsn: Dsn):
    return asyncio.run(check_server(dsn, SystemClock()))


def test_a_good_server_tells_its_version_and_its_clock_offset(shard_dsn: Dsn) -> None:
    server = check(shard_dsn)
    assert server.version.split(".")[0].isdigit()
    assert abs(server.offset_ms) < CLOSE_ENOUGH_MS


def test_the_offset_is_that_of_the_servers_clock(shard_dsn: Dsn) -> None:
    class SlowClock(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 60_000

    server = asyncio.run(check_server(shard_dsn, SlowClock()))
    assert abs(server.offset_ms - 60_000) < CLOSE_ENOUGH_MS


def test_a_database_with_another_character_set_is_refused(shard_dsn: Dsn) -> None:
    database = shard_dsn.database
    asyncio.run(query(shard_dsn, f"ALTER DATABASE {database} CHARACTER SET latin1"))
    try:
        with pytest.raises(OperatorError, match="the database has character set latin1: ALTER DATABASE"):
            check(shard_dsn)
    finally:
        asyncio.run(query(shard_dsn, f"ALTER DATABASE {database} CHARACTER SET utf8mb4"))


@pytest.mark.parametrize(
    ("version", "said"),
    [("10.11.6-MariaDB", "it is MariaDB (10.11.6-MariaDB)"), ("8.0.18", "it is MySQL 8.0.18"), ("5.7.44", "5.7.44")],
)
def test_another_kind_of_server_is_refused_before_it_is_asked_anything_else(version: str, said: str) -> None:
    with fake_mysql(version) as (dsn, asked), pytest.raises(OperatorError) as caught:
        check(dsn)
    assert said in str(caught.value)
    assert "; MySQL 8.0.19 or newer is needed" in str(caught.value)
    assert [statement for statement in asked if "SESSION" in statement] == []


def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    with pytest.raises(OperatorError) as caught:
        check(Dsn("root", "secret", "127.0.0.1", 1, "x"))
    assert str(caught.value).startswith("mysql://root@127.0.0.1:1/x: ")
    assert "secret" not in str(caught.value)
