"""Headers that a job may bring, and those that would change what its request is."""

import pytest

from engine.rules.headers import HEADERS_MAX, TOTAL_BYTES_MAX, VALUE_BYTES_MAX, header_faults

GOOD = [
    ("Content-Type", "application/json"),
    ("Authorization", "Bearer abc.def~+/="),
    ("X-Empty", ""),
    ("X-Tab", "a\tb"),
    ("x!#$%&'*+.^_`|~9", "odd, but a token"),
    ("Cookie", "a=b; c=d"),
    ("X-Long", "x" * VALUE_BYTES_MAX),
]

RESERVED = """Host host HOST Content-Length Transfer-Encoding Expect Connection Keep-Alive Proxy-Connection TE Trailer
    Upgrade Proxy-Authorization Proxy-Authenticate HTTP2-Settings Idempotency-Key idempotency-key X-Scheduled-At
    X-Attempt x-attempt webhook-id webhook-timestamp webhook-signature Webhook-Anything Accept-Encoding User-Agent"""

BAD_NAMES = [
    "",
    " ",
    "a b",
    "a:",
    ":a",
    "a\r\nb",
    "a\nb",
    "a\0",
    "é",
    "a\x7f",
    "a(b)",
    "a,b",
    "a/b",
    "a@b",
    "a[b]",
    "a\t",
    "x" * 129,
]
BAD_VALUES = [
    "\r",
    "\n",
    "a\r\nX: y",
    "a\nb",
    "\0",
    "a\0b",
    " a",
    "a ",
    "\ta",
    "a\t",
    "a\r\n b",
    "é",
    "\x7f",
    "\x01",
    "a\x0bb",
    "\u2028",
]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_ordinary_headers_pass(name, value):
    assert header_faults([(name, value)]) == []


@pytest.mark.parametrize("name", RESERVED.split())
def test_p9_what_the_service_or_the_connection_says_is_not_a_jobs_to_say(name):
    (fault,) = header_faults([(name, "x")])
    assert fault.pointer == f"/target/http/headers/{name}"
    assert "set by the service" in fault.detail


@pytest.mark.parametrize("name", BAD_NAMES)
def test_p9_what_is_no_name_is_refused(name):
    assert len(header_faults([(name, "x")])) == 1


@pytest.mark.parametrize("value", BAD_VALUES)
def test_p9_a_value_cannot_leave_its_line(value):
    assert len(header_faults([("X-A", value)])) == 1


def test_every_fault_is_found():
    faults = header_faults([("Host", "x"), ("a b", "\0"), ("X-A", "y" * (VALUE_BYTES_MAX + 1))])
    assert len(faults) == 4


def test_a_header_twice_in_whatever_case_is_refused():
    assert "twice" in header_faults([("X-A", "1"), ("x-a", "2")])[0].detail


def test_headers_together_are_bounded():
    assert header_faults([(f"X-{i}", "") for i in range(HEADERS_MAX)]) == []
    assert len(header_faults([(f"X-{i}", "") for i in range(HEADERS_MAX + 1)])) == 1
    assert len(header_faults([("X-A", "x" * 8000), ("X-B", "x" * (TOTAL_BYTES_MAX - 8000))])) == 1


def test_a_pointer_is_escaped():
    assert header_faults([("a/b~c", "x")])[0].pointer == "/target/http/headers/a~1b~0c"
