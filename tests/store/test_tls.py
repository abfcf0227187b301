"""TLS to MySQL, against a server that speaks nothing else: who is not who the address says, is told nothing."""

import asyncio
from dataclasses import replace

import pytest
import uvloop

from engine.config import Dsn
from engine.errors import OperatorError, StoreUnavailable
from engine.local.certificates import write_certificate
from engine.local.listener import free_port
from engine.store.shard import Shard
from tests.support.fake_mysql import fake_mysql
from tests.support.mysql import query, running_server

FILES = (("cert", "pem"), ("key", "key"), ("ca", "pem"))
ROWS = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address without tls, file of its authority, file of another) of a server for 127.0.0.1 alone."""
    folder = tmp_path_factory.mktemp("tls")
    write_certificate(folder / "server.pem", folder / "server.key", ["127.0.0.1"])
    write_certificate(folder / "other.pem", folder / "other.key", ["127.0.0.1"])
    with running_server(port=free_port()) as running:
        root = running.dsn("")
        for statement in (
            *(f"SET GLOBAL ssl_{part} = '{folder}/server.{end}'" for part, end in FILES),
            "ALTER INSTANCE RELOAD TLS",
            "SET GLOBAL require_secure_transport = ON",
            "CREATE USER guest@'%' IDENTIFIED BY 'word'",
            "CREATE DATABASE place",
            "GRANT ALL ON place.* TO guest@'%'",
        ):
            asyncio.run(query(root, statement))
        dsn = Dsn("guest", "word", "127.0.0.1", running._port, "place")
        yield dsn, str(folder / "server.pem"), str(folder / "other.pem")


def refusal(dsn):
    with pytest.raises((StoreUnavailable, OperatorError)) as caught:
        asyncio.run(query(dsn, "SELECT 1"))
    (line,) = str(caught.value).splitlines()
    assert "word" not in line
    return line


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_server_whose_authority_is_given_is_talked_to_over_tls(server, run):
    dsn, authority, _ = server

    async def body():
        shard = Shard(replace(dsn, tls=authority), 0)
        try:
            async with shard.connection() as connection:
                rows = (await connection.run(b"SHOW SESSION STATUS LIKE 'Ssl_version'")).rows
                many = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
                await connection.run(b"SET SESSION cte_max_recursion_depth = 20000")
                answer = await connection.run(f"{many} SELECT i, REPEAT('x', 100) FROM n".encode())
            return rows[0][1], len(answer.rows)
        finally:
            await shard.close()

    version, rows = run(body())
    assert version in ("TLSv1.2", "TLSv1.3")
    assert rows == ROWS


def test_p9_a_server_of_another_authority_is_refused_in_one_line(server):
    dsn, _, other = server
    assert refusal(replace(dsn, tls=other)).endswith("its certificate is refused: self-signed certificate")
    assert "its certificate is refused" in refusal(replace(dsn, tls="system"))


def test_p9_a_server_under_another_name_is_refused(server):
    dsn, authority, _ = server
    assert "its certificate is refused: Hostname mismatch" in refusal(replace(dsn, tls=authority, host="localhost"))


def test_without_tls_such_a_server_lets_nobody_in(server):
    dsn, _, _ = server
    assert "require_secure_transport" in refusal(dsn)


def test_a_file_of_authorities_that_is_none_is_named(server, tmp_path):
    dsn, _, _ = server
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (str(empty), str(tmp_path / "absent.pem")):
        assert refusal(replace(dsn, tls=path)).startswith(f"tls={path}: not a readable file of certificates")


def test_p9_a_server_that_offers_no_tls_is_asked_nothing(server):
    _, authority, _ = server
    with fake_mysql("8.4.0") as (dsn, asked):
        assert refusal(replace(dsn, password="word", tls=authority))
        assert asked == []
