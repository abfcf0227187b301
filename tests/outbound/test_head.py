"""Heads as a whole: what is sent is one request, for llhttp as for us."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.outbound.head import fixed_head, run_head
from engine.rules.headers import header_faults
from engine.rules.target_text import Target, read_target
from tests.support.llhttp import read_requests

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def head_of(url, method="POST", headers=(), body=b""):
    target = read_target(url)
    assert isinstance(target, Target)
    return run_head(fixed_head(target, method, headers, body), b"run_1", 0, 1, 0, b"v1,x")


def test_a_head_names_host_agent_and_encoding_once():
    head = head_of("https://example.com:8443/a?b", headers=[("X-Order", "7")], body=b"{}")
    (found,) = read_requests(head + b"{}")
    headers = dict(found.headers)
    assert (found.method, found.target) == (b"POST", b"/a?b")
    assert headers[b"Host"] == b"example.com:8443"
    assert headers[b"User-Agent"].startswith(b"SecondZero/")
    assert headers[b"Accept-Encoding"] == b"identity"
    assert headers[b"X-Order"] == b"7"
    assert headers[b"Content-Length"] == b"2"
    assert found.body == b"{}"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("body", [None, b"", b"abc"])
def test_every_method_frames_its_body(method, body):
    target = read_target("https://example.com/")
    head = run_head(fixed_head(target, method, [], body), b"run_1", 0, 1, 0, b"v1,x")
    found = read_requests((head + (body or b"")) * 2)
    assert [request.body for request in found] == [body or b""] * 2
    assert (b"Content-Length" in dict(found[0].headers)) is (body is not None or method in ("POST", "PUT", "PATCH"))


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "X-Attempt", "webhook-id", "TE"])
def test_p9_the_builder_refuses_reserved_headers_even_if_nobody_asked(name):
    with pytest.raises(ValueError, match="not a job's"):
        fixed_head(read_target("https://example.com/"), "POST", [(name, "x")], b"")


TEXT = st.text("aZ0-_: ,\t\r\n\0\x7fé", max_size=12)
LIKELY = st.sampled_from(["Host", "X", "Content-Length", "Transfer-Encoding", "chunked", "a\r\n\r\nGET / HTTP/1.1\r\n"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TEXT | LIKELY, TEXT | LIKELY), max_size=3))
def test_p9_what_passes_at_put_the_builder_writes_and_what_it_refuses_never_passed(headers):
    try:
        fixed_head(read_target("https://example.com/"), "POST", headers, b"")
    except ValueError:
        assert header_faults(headers)
