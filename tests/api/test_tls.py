"""The API under TLS, on real sockets: what is counted from its first moment, what is refused, how it ends."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from api import protocol
from api.tls_door import server_context
from engine.errors import OperatorError
from tests.support.api import ApiServer, served
from tests.support.certificates import NAME, Authority
from tests.support.mysql import SchemaPool
from tests.support.wait import until

CONNECTIONS = 20
WAIT_S = 10
REQUEST = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
CLIENT_HELLO_BEGINS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Path:
    authority.server()
    return authority.folder / "server.pem"


@pytest.fixture
def server(schema_pool: SchemaPool, certificate: Path) -> Iterator[ApiServer]:
    settings = {"tls_cert": certificate, "tls_key": certificate, "api_connections_per_address": CONNECTIONS}
    with schema_pool.schema() as first, served([first], **settings) as server:
        yield server


def secure(server: ApiServer, authority: Authority, *, newest: ssl.TLSVersion | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority.file))
    if newest:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = newest
        context.set_ciphers("ALL:@SECLEVEL=0")
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    try:
        return context.wrap_socket(plain, server_hostname=NAME)
    except BaseException:
        plain.close()
        raise


def answer(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    connection.sendall(request)
    said = b""
    while not said.endswith(b"}"):
        read = connection.recv(65_536)
        if not read:
            break
        said += read
    return said


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65_536) == b""
    except ConnectionResetError:
        return True


def test_calls_are_answered_one_after_the_other_and_many_at_once(server: ApiServer, authority: Authority) -> None:
    with secure(server, authority) as connection:
        assert connection.version() == "TLSv1.3"
        for _ in range(3):
            assert answer(connection).startswith(b"HTTP/1.1 200")

    def call(_: int) -> bool:
        with secure(server, authority) as one:
            return answer(one).startswith(b"HTTP/1.1 200")

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(call, range(200)))
    until(lambda: not server.connections())


def test_p9_whoever_finishes_no_handshake_is_counted_and_cut_off(
    server: ApiServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S_MAX", 1.5)
    with ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))
            for _ in range(CONNECTIONS)
        ]
        for connection in silent[::2]:
            connection.sendall(CLIENT_HELLO_BEGINS)
        assert server.connections() == 0, "none of them is one of HTTP"
        # One more of this address is one too many, though not one has finished its handshake.
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as one_too_many:
            assert is_closed(one_too_many)
        assert all(is_closed(connection) for connection in silent), "their time is over"
    with secure(server, authority) as connection:
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_p9_broken_handshakes_leave_nothing_counted(server: ApiServer, authority: Authority) -> None:
    for number in range(3 * CONNECTIONS):
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
            if number % 3:
                connection.sendall(CLIENT_HELLO_BEGINS if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
            if number % 3 == 2:
                connection.shutdown(socket.SHUT_WR)
                assert b"HTTP/1.1" not in connection.recv(100)

    def is_served() -> bool:
        with suppress(OSError), secure(server, authority) as connection:
            return answer(connection).startswith(b"HTTP/1.1 200")
        return False

    until(is_served)
    until(lambda: not server._server._bounds._connections)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_p9_a_protocol_older_than_tls_1_2_is_not_spoken(server: ApiServer, authority: Authority) -> None:
    with pytest.raises(ssl.SSLError):
        secure(server, authority, newest=ssl.TLSVersion.TLSv1_1)
    with secure(server, authority, newest=ssl.TLSVersion.TLSv1_2) as connection:
        assert answer(connection).startswith(b"HTTP/1.1 200")


def test_slow_heads_are_cut_off_under_tls_too(
    server: ApiServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LOOK_S", 0.05)
    monkeypatch.setattr(protocol, "HEAD_S_MAX", 1.0)
    with secure(server, authority) as connection:
        assert answer(connection, b"GET /livez HTTP/1.1\r\nHost").startswith(b"HTTP/1.1 408")


def test_a_server_ends_though_somebody_is_in_the_middle_of_a_handshake(
    schema_pool: SchemaPool, certificate: Path
) -> None:
    with schema_pool.schema() as first, ExitStack() as opened:
        with served([first], tls_cert=certificate, tls_key=certificate) as server:
            held = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))
            held.sendall(CLIENT_HELLO_BEGINS)
            until(lambda: bool(server._server._bounds._connections))
        assert is_closed(held)


def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path: Path, certificate: Path) -> None:
    (tmp_path / "nonsense").write_text("nonsense")
    for cert, key in ((tmp_path / "none", certificate), (tmp_path / "nonsense", certificate), (certificate, tmp_path)):
        with pytest.raises(OperatorError, match="--tls-cert") as caught:
            server_context(cert, key)
        assert "\n" not in str(caught.value)
