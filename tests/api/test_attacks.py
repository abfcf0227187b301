"""What an attacker sends to the API, byte by byte: two requests in one, keys in wrong places, names that fold."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from engine.commands.administration import table
from tests.support.api import CRON_JOB, ApiServer, served
from tests.support.mysql import SchemaPool

WAIT_S = 10
POST = b"POST /v1/cron:preview HTTP/1.1\r\n"
GET = b"GET /v1/usage HTTP/1.1\r\n"
SMUGGLED = b"GET /v1/usage HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, served([first]) as server:
        yield server


def answers(server: ApiServer, *pieces: bytes) -> list[bytes]:
    """The status of every answer to these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        connection.sendall(b"".join(pieces))
        said = b""
        with suppress(OSError):
            while data := connection.recv(65_536):
                said += data
    return [part[:3] for part in said.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]


TWO_IN_ONE = {
    "a length and chunks": POST + b"%sContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": POST + b"%sContent-Length: 2\r\nContent-Length: 39\r\n\r\n{}" + SMUGGLED,
    "an unknown coding": POST + b"%sTransfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "two codings": POST + b"%sTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a space before the colon": POST + b"%sContent-Length : 2\r\n\r\n{}" + SMUGGLED,
    "a negative length": POST + b"%sContent-Length: -1\r\n\r\n{}" + SMUGGLED,
    "a length with a sign": POST + b"%sContent-Length: +2\r\n\r\n{}" + SMUGGLED,
    "a folded line": GET + b"%sX-A: b\r\n Content-Length: 2\r\n\r\n" + SMUGGLED,
    "lines that end in LF": b"GET /v1/usage HTTP/1.1\nHost: a\n\n" + SMUGGLED,
    "a CR in a value": GET + b"%sX-A: a\rb\r\n\r\n" + SMUGGLED,
    "a NUL in a value": GET + b"%sX-A: a\0b\r\n\r\n" + SMUGGLED,
    "a quote in a chunk": POST + b'%sTransfer-Encoding: chunked\r\n\r\n2;a="\r\n{}\r\n0\r\n\r\n' + SMUGGLED,
    "HTTP/2 from the start": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
}


@pytest.mark.parametrize("which", TWO_IN_ONE)
def test_p9_no_request_hides_another(api_server: ApiServer, which: str) -> None:
    tenant = api_server.tenant()
    own = f"Host: a\r\nAuthorization: Bearer {tenant.key}\r\n".encode()
    sent = TWO_IN_ONE[which]
    assert answers(api_server, sent.replace(b"%s", own)) == [b"400"]


def test_p9_a_key_is_taken_from_one_authorization_header_and_nowhere_else(api_server: ApiServer) -> None:
    tenant = api_server.tenant()
    key = str(tenant.key)
    good = f"Authorization: Bearer {key}\r\n"
    for line, headers in (
        (f"GET /v1/usage?api_key={key}&access_token={key}&key={key}", ""),
        ("GET /v1/usage", f"Authorization: Basic {key}\r\n"),
        ("GET /v1/usage", f"X-Api-Key: {key}\r\nCookie: key={key}\r\nProxy-Authorization: Bearer {key}\r\n"),
        ("GET /v1/usage", f"{good}Authorization: Bearer sz_{'a' * 32}\r\n"),
        ("GET /v1/usage", f"Authorization: Bearer sz_{'a' * 32}\r\n{good}"),
        ("GET /v1/usage", good + good),
        ("GET /v1/usage", f"Authorization: Bearer {key.upper()}\r\n"),
        ("GET /v1/usage", f"Authorization: Bearer {key},{key}\r\n"),
    ):
        request = f"{line} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n"
        assert answers(api_server, request.encode()) == [b"401"], headers
    request = f"GET /v1/usage HTTP/1.1\r\nHost: a\r\n{good}Connection: close\r\n\r\n"
    assert answers(api_server, request.encode()) == [b"200"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/a%00b", "/v1/jobs/a%0d%0aX:b", "/v1/jobs/%252e%252e", "/v1/jobs/%2e%2e", "/v1/jobs/a%2fb",
        "/v1/jobs/%ef%bd%81", "/v1/jobs/a%20", "/v1/jobs/" + "a" * 129, "/v1/jobs/e%cc%81",
    ],
)  # fmt: skip
def test_p9_a_name_has_one_spelling(api_server: ApiServer, path: str) -> None:
    tenant = api_server.tenant()
    assert tenant.call("PUT", path, CRON_JOB).status in (404, 422)
    assert tenant.get("/v1/jobs").json["jobs"] == []
    assert tenant.get("/v1/jobs/../usage").status == 404


def test_p9_what_switches_the_protocol_or_the_method_changes_nothing(api_server: ApiServer) -> None:
    tenant = api_server.tenant()
    tenant.put("a")
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "a" * 24}
    assert tenant.call("GET", "/v1/usage", None, upgrade).status == 200
    assert tenant.call("POST", "/v1/jobs/a", {}, {"X-HTTP-Method-Override": "DELETE"}).status == 405
    assert tenant.call("TRACE", "/v1/usage").status == 405
    assert tenant.job("a")["version"] == 1


def test_p9_a_request_id_comes_back_only_where_it_is_plain(api_server: ApiServer) -> None:
    tenant = api_server.tenant()
    for given in ('a"b<script>', "a b", "x" * 65, "a\tb", "\u00e9"):
        shown = tenant.call("GET", "/v1/usage", None, {"X-Request-Id": given}).headers["X-Request-Id"]
        assert shown != given
        assert shown.isascii()
    assert tenant.call("GET", "/v1/usage", None, {"X-Request-Id": "a-1"}).headers["X-Request-Id"] == "a-1"


def test_p9_notes_of_others_move_no_cursor_of_a_terminal() -> None:
    lines = table(("note",), [("\x1b]0;owned\x07",), ("a\u202eb",), ("a\nb",), ("caf\u00e9",)])
    assert all(line.isprintable() for line in lines)
    assert lines[-1] == "caf\u00e9"
