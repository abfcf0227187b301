"""Calls as the engine sends them: its own request head and signature, on a socket."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from engine.outbound.head import fixed_head, run_head
from engine.outbound.sign import signature, signing_key
from engine.outbound.target import Guard
from engine.rules.target_text import Target

SCHEDULED_AT_MS = 1_900_000_000_000
ANSWER_S = 20


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def request_bytes(
    url: str, secrets: Sequence[str], key: str, attempt: int, body: bytes, *, sent_at_s: int | None = None
) -> bytes:
    """Head and body of one attempt. With several secrets it has a signature of each."""
    target = Guard(["127.0.0.0/8"]).judge_url(url)
    assert isinstance(target, Target)
    fixed = fixed_head(target, "POST", [("Content-Type", "application/json")], body)
    at_s = int(time.time()) if sent_at_s is None else sent_at_s
    signed = signature([signing_key(secret) for secret in secrets], key.encode(), at_s, body)
    return run_head(fixed, key.encode(), SCHEDULED_AT_MS, attempt, at_s, signed) + body


def send(port: int, request: bytes) -> Answered:
    """On a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def headers_of(request: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body of such a request."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = io.BytesIO(head.partition(b"\r\n")[2] + b"\r\n\r\n")
    return dict(http.client.parse_headers(lines)), body
