"""What a connection may ask of the API: sizes, times and numbers, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import orjson
import pytest

from api import protocol
from tests.support.api import ApiServer, served
from tests.support.mysql import SchemaPool
from tests.support.wait import until

SOON_S = 0.3
WAIT_S = 10
LINE = b"GET /livez HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Times short enough to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "BODY_S_MAX", 5 * SOON_S)
        for name in ("HEAD_S_MAX", "UNREAD_S_MAX", "LINGER_S"):
            patch.setattr(protocol, name, SOON_S)
        patch.setattr(protocol, "LOOK_S", 0.05)
        yield


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool, quick: None) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, served([first], api_connections_per_address=20) as server:
        yield server


@contextmanager
def connected(server: ApiServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the peer closes."""
    answer = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            answer += data
    return answer


def is_served(connection: socket.socket, head: bytes = LINE + b"\r\n") -> bool:
    """Whether a request on this connection is answered."""
    connection.sendall(head)
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65_536)
    return answer.startswith(b"HTTP/1.1 200")


def problem_in(answer: bytes) -> tuple[int, str]:
    """The status and kind of the one answer there is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    return int(head.split(b" ")[1]), orjson.loads(body)["type"].removeprefix("urn:secondzero:problem:")


def test_a_head_that_is_too_long_is_refused_however_it_comes(api_server: ApiServer) -> None:
    long = LINE + b"X-A: " + b"a" * protocol.HEAD_BYTES_MAX
    for pieces in ([long], [long[:50], long[50:]], [long[at : at + 999] for at in range(0, len(long), 999)]):
        with connected(api_server) as connection:
            for piece in pieces:
                connection.sendall(piece)
            assert problem_in(read_all(connection)) == (431, "head-too-large")


def test_a_url_that_is_too_long_is_a_head_that_is(api_server: ApiServer) -> None:
    with connected(api_server) as connection:
        connection.sendall(b"GET /" + b"a" * 2 * protocol.HEAD_BYTES_MAX)
        assert problem_in(read_all(connection)) == (431, "head-too-large")


def test_the_longest_head_is_answered_and_so_is_the_next_one(api_server: ApiServer) -> None:
    filler = b"X-A: " + b"a" * (protocol.HEAD_BYTES_MAX - len(LINE) - 9) + b"\r\n\r\n"
    with connected(api_server) as connection:
        for _ in range(3):
            assert is_served(connection, LINE + filler)


def test_a_head_that_comes_drop_by_drop_is_cut_off(api_server: ApiServer) -> None:
    with connected(api_server) as connection:
        connection.settimeout(SOON_S / 10)
        answer = b""
        for byte in LINE + b"X-A: " + b"a" * 1_000:
            with suppress(TimeoutError):
                answer = connection.recv(65_536)
                break
            connection.send(bytes([byte]))
        assert problem_in(answer) == (408, "timeout")


def test_a_connection_that_says_nothing_is_closed(api_server: ApiServer) -> None:
    with connected(api_server) as connection:
        assert read_all(connection) == b""


def test_empty_lines_before_a_request_keep_nothing_open(api_server: ApiServer) -> None:
    with connected(api_server) as connection:
        assert is_served(connection)
        connection.sendall(b"\r\n")
        assert problem_in(read_all(connection)) == (408, "timeout")


def test_a_body_that_does_not_come_is_cut_off_and_no_mistake_of_ours(api_server: ApiServer) -> None:
    tenant = api_server.tenant()
    with connected(api_server) as connection:
        head = f"PUT /v1/jobs/slow HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {tenant.key}\r\nContent-Length: 100\r\n"
        connection.sendall(head.encode() + b'\r\n{"schedule":')
        assert problem_in(read_all(connection)) == (408, "timeout")
    assert tenant.get("/v1/jobs/slow").status == 404
    assert api_server.failures == []


def test_a_body_that_is_too_long_is_refused_whether_it_says_so_or_not(api_server: ApiServer) -> None:
    tenant = api_server.tenant()
    assert tenant.call("PUT", "/v1/jobs/long", b" " * (3 << 20)).status == 413
    head = (
        f"PUT /v1/jobs/long HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {tenant.key}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    with connected(api_server) as connection:
        connection.sendall(head.encode())
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        with suppress(OSError):
            for _ in range(48):
                connection.sendall(chunk)
            connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")


def test_what_is_no_http_is_refused_in_our_own_words(api_server: ApiServer) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", LINE + b"Content-Length: 1x\r\n\r\n"):
        with connected(api_server) as connection:
            connection.sendall(nonsense)
            assert problem_in(read_all(connection)) == (400, "bad-request")


def test_nonsense_behind_a_request_does_not_come_before_its_answer(api_server: ApiServer) -> None:
    with connected(api_server) as connection:
        connection.sendall(LINE + b"\r\n" + b"\x00nonsense\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_who_does_not_read_its_answer_is_cut_off(api_server: ApiServer) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", api_server.port))
        requests = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 50
        connection.settimeout(WAIT_S)
        connection.sendall(requests)
        until(lambda: not api_server.connections())


def test_one_address_has_so_many_connections_and_then_waits_for_its_own(api_server: ApiServer) -> None:
    until(lambda: not api_server.connections())
    with ExitStack() as opened:
        held = [opened.enter_context(connected(api_server)) for _ in range(20)]
        for connection in held:
            assert is_served(connection)
        with connected(api_server) as one_too_many:
            assert problem_in(read_all(one_too_many)) == (503, "unavailable")
        assert is_served(held[0]), "those that are there are served"
    until(lambda: not api_server.connections())
    with connected(api_server) as connection:
        assert is_served(connection)


class Opened:
    """Stands for a connection."""

    class loop:  # noqa: N801 - as a connection has it
        @staticmethod
        def call_later(*_: object) -> None: ...


def test_the_connections_of_a_process_and_of_an_ipv6_network_are_counted() -> None:
    bounds = protocol.Bounds(4, 2)
    first = Opened()
    assert bounds.enter(first, "2001:db8::1") is None
    assert bounds.enter(Opened(), "2001:db8::2:3") is None
    assert bounds.enter(Opened(), "2001:db8::3") == "at most 2 connections from one address"
    assert bounds.enter(Opened(), "::ffff:10.0.0.1") is None
    assert bounds.enter(Opened(), "10.0.0.1") is None
    assert bounds.enter(Opened(), "10.0.0.2") == "every connection of this process is in use"
    bounds.leave(first)
    assert bounds.enter(Opened(), "10.0.0.2") is None
