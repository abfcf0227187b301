"""wire.pyx against its slow twins: llhttp for reading, plain Python for writing."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native import wire
from engine.outbound.answer import AnswerReader, Reading

HEAD_BYTES_MAX = 16_384


def twin(data, to_head):
    """What llhttp makes of the same bytes: None unless they are one complete answer and nothing more."""
    reader = AnswerReader(to_head)
    if reader.feed(data) is not Reading.DONE or reader.problem:
        return None
    return reader.status, reader.stays_open, reader.retry_after, bytes(reader.excerpt)


TOKEN = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=12)
NAMES = st.sampled_from(
    [
        "Content-Length", "content-length", "CONTENT-LENGTH", "Connection", "Retry-After", "Transfer-Encoding",
        "Upgrade", "Proxy-Connection", "Content-Type", "X", "Content-Lengthy", "Retry-Afte", "Set-Cookie", "Trailer",
    ]
) | TOKEN  # fmt: skip
VALUES = st.sampled_from(
    ["0", "2", "3", "02", "1025", "2, 2", "close", "Close", "keep-alive", "Keep-Alive", "close, x", "chunked", "", "12"]
) | st.text("abc ,;=\t09\x80\xff", max_size=12)  # fmt: skip
SPACES = st.sampled_from(["", " ", "  ", "\t", " \t "])


@st.composite
def answers(draw):
    """Answers that are nearly plain: each part is usually right."""
    version = draw(st.sampled_from(["HTTP/1.1"] * 9 + ["HTTP/1.0", "HTTP/2.0", "http/1.1", "HTTP/1.1 "]))
    status = draw(
        st.sampled_from(["200"] * 9 + ["204", "304", "404", "503", "100", "101", "199", "600", "20", "2000", "2x0"])
    )
    reason = draw(st.sampled_from([" OK"] * 9 + ["", " ", " a\tb", " \xe4", "\tOK", " a\x00"]))
    end = draw(st.sampled_from(["\r\n"] * 19 + ["\n"]))
    lines = [f"{version} {status}{reason}"]
    for name, value in draw(st.lists(st.tuples(NAMES, VALUES), max_size=5)):
        colon = draw(st.sampled_from([":"] * 19 + [" :"]))
        lines.append(f"{name}{colon}{draw(SPACES)}{value}{draw(SPACES)}")
    body = draw(st.sampled_from(["", "ok", "abc", "x" * 1025]))
    if draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
    extra = draw(st.sampled_from([""] * 9 + ["x", "\r\n", "HTTP/1.1 200 OK\r\n\r\n"]))
    return (end.join(lines) + "\r\n\r\n" + body + extra).encode("latin-1")


@settings(max_examples=300, deadline=None)
@given(answers(), st.booleans())
def test_p9_what_is_read_at_a_glance_llhttp_reads_alike(data, to_head):
    read = wire.read_answer(data, to_head)
    assert read is None or read == twin(data, to_head)


@settings(max_examples=300, deadline=None)
@given(answers(), st.integers(0, 200), st.binary(max_size=2))
def test_p9_what_is_read_of_damaged_answers_llhttp_reads_alike(data, at, damage):
    data = data[:at] + damage + data[at + len(damage) :]
    read = wire.read_answer(data, False)
    assert read is None or read == twin(data, False)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda tail: b"HTTP/1.1 200 OK\r\n" + tail))
def test_any_bytes_are_read_or_left_to_llhttp(data):
    read = wire.read_answer(data, False)
    assert read is None or read == twin(data, False)


@settings(max_examples=300, deadline=None)
@given(answers(), st.lists(st.integers(1, 50), max_size=20))
def test_llhttp_reads_the_same_however_the_bytes_are_cut(data, sizes):
    whole, cut = AnswerReader(False), AnswerReader(False)
    reading = whole.feed(data)
    rest, last = data, Reading.MORE
    for size in [*sizes, len(data)]:
        piece, rest = rest[:size], rest[size:]
        if piece and last is Reading.MORE:
            last = cut.feed(piece)
    assert last is reading
    assert (cut.status, cut.retry_after, cut.excerpt) == (whole.status, whole.retry_after, whole.excerpt)


PLAIN = b"HTTP/1.1 200 OK\r\nServer: x\r\nRetry-After:  17 \r\nContent-Length: 3\r\n\r\nabc"


def test_the_plainest_answer_is_read_at_a_glance():
    assert wire.read_answer(PLAIN, False) == (200, True, b"17", b"abc")
    assert wire.read_answer(PLAIN.replace(b"abc", b""), True) == (200, True, b"17", b"")
    assert wire.read_answer(PLAIN.replace(b"Server: x", b"Connection: close"), False) == (200, False, b"17", b"abc")
    assert wire.read_answer(b"HTTP/1.1 204 No Content\r\n\r\n", False) == (204, True, None, b"")


@pytest.mark.parametrize("cut", range(len(PLAIN)))
def test_an_answer_that_is_not_whole_is_left_to_llhttp(cut):
    assert wire.read_answer(PLAIN[:cut], False) is None


def test_an_excerpt_has_at_most_1024_bytes():
    body = bytes(range(256)) * 8
    assert wire.read_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2048\r\n\r\n" + body, False)[3] == body[:1024]


def test_a_head_over_16_kb_is_left_to_llhttp():
    def answer(size):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \r\n\r\n"
        return head.replace(b"X: ", b"X: " + b"x" * (size - len(head)))

    assert wire.read_answer(answer(HEAD_BYTES_MAX), False)
    assert wire.read_answer(answer(HEAD_BYTES_MAX + 1), False) is None


# Writing


def slow_fixed_head(method, path, fields):
    """The rule again, as regular expressions."""
    token, visible, value = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+", rb"[!-~]+", rb"([!-~]([ \t!-~]*[!-~])?)?"
    if not re.fullmatch(token, method) or not re.fullmatch(visible, path):
        raise ValueError
    if not all(re.fullmatch(token, name) and re.fullmatch(value, text) for name, text in fields):
        raise ValueError
    return b"%b %b HTTP/1.1\r\n" % (method, path) + b"".join(b"%b: %b\r\n" % field for field in fields)


ODD = st.binary(max_size=8) | st.text("aB-: \t\r\n\0/?é", max_size=8).map(str.encode)


@settings(max_examples=300, deadline=None)
@given(ODD | st.just(b"POST"), ODD | st.just(b"/x"), st.lists(st.tuples(ODD | st.just(b"X"), ODD), max_size=3))
def test_p9_fixed_heads_are_written_as_the_rule_says_or_refused(method, path, fields):
    try:
        expected = slow_fixed_head(method, path, fields)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - which of the parts was wrong does not matter
            wire.fixed_head(method, path, fields)
        return
    written = wire.fixed_head(method, path, fields)
    assert written == expected
    assert written.count(b"\r\n") == written.count(b"\r") == written.count(b"\n") == 1 + len(fields)


FIXED = wire.fixed_head(b"POST", b"/x", [(b"Host", b"example.com")])
TIMES = st.integers(0, 253_402_300_799_999)


def slow_time(time_ms):
    seconds, ms = divmod(time_ms, 1000)
    moment = datetime(1970, 1, 1, tzinfo=UTC).fromtimestamp(seconds, UTC)
    return moment.strftime(f"{moment.year:04}-%m-%dT%H:%M:%S") + (f".{ms:03}Z" if ms else "Z")


@settings(max_examples=300, deadline=None)
@given(TIMES | TIMES.map(lambda ms: ms // 1000 * 1000), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_run_heads_say_what_differs_for_an_attempt(scheduled_at_ms, attempt, timestamp_s):
    written = wire.run_head(FIXED, b"run_1", scheduled_at_ms, attempt, timestamp_s, b"v1,abc v1,def")
    assert written.decode() == (
        "POST /x HTTP/1.1\r\nHost: example.com\r\n"
        f"Idempotency-Key: run_1\r\nX-Scheduled-At: {slow_time(scheduled_at_ms)}\r\nX-Attempt: {attempt}\r\n"
        f"webhook-id: run_1\r\nwebhook-timestamp: {timestamp_s}\r\nwebhook-signature: v1,abc v1,def\r\n\r\n"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"fixed": b""},
        {"fixed": b"POST / HTTP/1.1"},
        {"key": b""},
        {"key": b"a b"},
        {"key": b"a\r\nX: y"},
        {"key": "é".encode()},
        {"signature": b"v1,a\n"},
        {"signature": b"\0"},
        {"scheduled_at_ms": -1},
        {"scheduled_at_ms": 253_402_300_800_000},
        {"attempt": -1},
        {"timestamp_s": -1},
    ],
)
def test_p9_run_heads_refuse_what_would_not_stay_in_its_line(change):
    parts = {"fixed": FIXED, "key": b"k", "scheduled_at_ms": 0, "attempt": 1, "timestamp_s": 0, "signature": b"v1,a"}
    assert wire.run_head(**parts)
    with pytest.raises(ValueError):  # noqa: PT011
        wire.run_head(**{**parts, **change})
