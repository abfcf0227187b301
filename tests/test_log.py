"""The log: of what is called it names an origin, never the path or query, whatever an error says."""

from __future__ import annotations

import io

import orjson
import pytest

from engine.log import LogSubscriber


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("cannot call https://example.com/hooks/c4nary?token=c4nary: no", "cannot call https://example.com no"),
        ("http://u:c4nary@example.com:8080/c4nary", "http://example.com:8080"),
        ("'https://example.com?c4nary' is refused", "'https://example.com' is refused"),
        ('"https://[2001:db8::1]:443/c4nary#c4nary"', '"https://[2001:db8::1]:443"'),
        ("mysql://root@/shard_1?unix_socket=/x", "mysql://root@/shard_1?unix_socket=/x"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_p9_a_logged_error_names_an_origin_never_path_or_query(said: str, logged: str) -> None:
    stream = io.BytesIO()
    subscriber = LogSubscriber("test", "debug", stream)
    subscriber("stage.failed", {"stage": "x", "error": ValueError(said)})
    subscriber("notice.refused", {"kind": "failed", "detail": said})
    errors = [orjson.loads(line) for line in stream.getvalue().splitlines()]
    assert errors[0]["error"] == f"ValueError: {logged} ()"
    assert errors[1]["detail"] == logged
    assert b"c4nary" not in stream.getvalue()
