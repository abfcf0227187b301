"""Heads as a whole: what is sent is one request, for llhttp as for us."""

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.outbound.head import fixed_head, run_head
from engine.rules.headers import header_faults
from engine.rules.target_text import Refusal, Target, read_target

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class Requests:
    """Everything llhttp finds in a stream of bytes."""

    def __init__(self, stream):
        self.found = []
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(stream)

    def on_url(self, url):
        self._url, self._headers, self._body = url, [], b""

    def on_header(self, name, value):
        self._headers.append((name, value))

    def on_body(self, body):
        self._body += body

    def on_message_complete(self):
        self.found.append((self._parser.get_method(), self._url, dict(self._headers), self._body))


def head_of(url, method="POST", headers=(), body=b""):
    target = read_target(url)
    assert isinstance(target, Target)
    return run_head(fixed_head(target, method, headers, body), b"run_1", 0, 1, 0, b"v1,x")


def test_a_head_names_host_agent_and_encoding_once():
    head = head_of("https://example.com:8443/a?b", headers=[("X-Order", "7")], body=b"{}")
    (found,) = Requests(head + b"{}").found
    assert found[:2] == (b"POST", b"/a?b")
    assert found[2][b"Host"] == b"example.com:8443"
    assert found[2][b"User-Agent"].startswith(b"SecondZero/")
    assert found[2][b"Accept-Encoding"] == b"identity"
    assert found[2][b"X-Order"] == b"7"
    assert found[2][b"Content-Length"] == b"2"
    assert found[3] == b"{}"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("body", [None, b"", b"abc"])
def test_every_method_frames_its_body(method, body):
    target = read_target("https://example.com/")
    head = run_head(fixed_head(target, method, [], body), b"run_1", 0, 1, 0, b"v1,x")
    found = Requests((head + (body or b"")) * 2).found
    assert [request[3] for request in found] == [body or b""] * 2
    assert (b"Content-Length" in found[0][2]) is (body is not None or method in ("POST", "PUT", "PATCH"))


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "X-Attempt", "webhook-id", "TE"])
def test_p9_the_builder_refuses_reserved_headers_even_if_nobody_asked(name):
    with pytest.raises(ValueError, match="not a job's"):
        fixed_head(read_target("https://example.com/"), "POST", [(name, "x")], b"")


TEXT = st.text("aZ0-_: ,\t\r\n\0\x7fé", max_size=12)
LIKELY = st.sampled_from(["Host", "X", "Content-Length", "Transfer-Encoding", "chunked", "a\r\n\r\nGET / HTTP/1.1\r\n"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(METHODS),
    st.text(max_size=20).map(lambda text: "http://example.com/" + text),
    st.lists(st.tuples(TEXT | LIKELY, TEXT | LIKELY), max_size=3),
    st.binary(max_size=40) | st.just(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
)
def test_p9_no_input_makes_two_requests_of_one(method, url, headers, body):
    target = read_target(url)
    if isinstance(target, Refusal):
        return
    try:
        fixed = fixed_head(target, method, headers, body)
    except ValueError:
        return
    stream = run_head(fixed, b"run_1", 0, 1, 0, b"v1,x") + body
    found = Requests(stream + stream).found
    assert [request[0] for request in found] == [method.encode()] * 2
    assert [request[3] for request in found] == [body] * 2


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TEXT | LIKELY, TEXT | LIKELY), max_size=3))
def test_p9_what_passes_at_put_the_builder_writes_and_what_it_refuses_never_passed(headers):
    try:
        fixed_head(read_target("https://example.com/"), "POST", headers, b"")
    except ValueError:
        assert header_faults(headers)
