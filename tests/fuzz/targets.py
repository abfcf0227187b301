"""What is fuzzed, and what must be true of any input: mostly that a slow, plain twin says the same."""

from __future__ import annotations

import ipaddress
import json
import math
from typing import Any

import orjson
from hypothesis import strategies as st

from api.definitions import JOB, RETRY, read_job, show_definition
from api.job_reading import JobReading
from api.strict_json import NotJson, read_json
from engine import zones
from engine._native import batch, cron, wire
from engine.model import Definition
from engine.outbound import head
from engine.outbound.answer import AnswerReader, Reading
from engine.outbound.target import SPECIAL_IPV4, SPECIAL_IPV6, Guard
from engine.rules import target_text
from engine.rules.headers import header_faults
from engine.rules.target_text import REASONS, Refusal, read_target
from tests.fuzz.run import Target, edited
from tests.native.test_batch import ROWS
from tests.native.test_cron import INSTANTS, changing_zones, slow_or_none
from tests.native.test_wire import answers, twin
from tests.support import batch_twin
from tests.support.cron_text import ALPHABET, EXPRESSIONS, broken
from tests.support.llhttp import read_requests

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


# Cron

EXPRESSION_TEXTS = EXPRESSIONS | broken() | st.text(ALPHABET, max_size=40) | st.text(max_size=20)


def check_cron(case: tuple[str, int, str]) -> None:
    """The same texts are expressions as for the reference; times grow, and forwards, backwards and count agree."""
    text, after, zone_name = case
    slow = slow_or_none(text)
    compiled = compiled_or_none(text)
    assert (compiled is None) == (slow is None)
    if compiled is None:
        return
    zone = zones.zone(zone_name)
    times = cron.next_n(compiled, zone, after, 3)
    assert times == sorted(set(times))
    assert all(time > after for time in times)
    if times:
        assert cron.last_n(compiled, zone, after, times[-1], 4) == times
        assert cron.count_times(compiled, zone, after, times[-1]) == len(times)


def compiled_or_none(text: str) -> cron.Expression | None:
    try:
        return cron.compile_expression(text)
    except cron.ExpressionError:
        return None


# URLs and addresses

URL_PIECES = st.sampled_from([
     "http://", "https://", "HTTP://", "http:/", "/", "//", "\\", "?", "#", "@", ":", ":80", ":0", ":65536", "[", "]",
     "[::1]", "[::ffff:127.0.0.1]", "[fe80::1%25eth0]", ".", "..", "%", "%2e", "%00", "%0d%0a", "localhost", "user:",
     "example.com", "EXAMPLE.com", "xn--bcher-kva.de", "bücher.de", "127.0.0.1", "127.1", "0x7f000001", "0177.0.0.1",
     "2130706433", "①②", "8.8.8.8", "ａ", "。", "．", "\xad", "\u200b", "\t", "\r\n", "\0", "-", " ",
])  # fmt: skip
ANY_URL_PART = st.lists(URL_PIECES | st.text(max_size=3), max_size=6).map("".join)
URLS = st.tuples(st.sampled_from(["http://", "https://"]), URL_PIECES, ANY_URL_PART).map("".join) | ANY_URL_PART


def check_url(url: str) -> None:
    """A refusal with a reason, or a target of visible ASCII that reads again as itself; its host is plainly written."""
    target = read_target(url)
    if isinstance(target, Refusal):
        assert target.reason in REASONS
        return
    assert target.path.startswith("/")
    assert all(33 <= ord(character) <= 126 for character in target.path + target.host_header)
    assert not set("/\\@?# %") & set(target.host_header)
    assert read_target(f"{target.origin.scheme}://{target.host_header}{target.path}") == target
    assert "localhost" not in target.origin.host.split(".")[-1:]
    if target.origin.host.replace(".", "").isdigit():
        assert target.origin.host in url, "an IPv4 address that was not written as one"


# Just inside and just outside of every special network.
EDGES = [
    type(network[0])(int(edge) + step)
    for network, _ in (*SPECIAL_IPV4, *SPECIAL_IPV6)
    for edge, step in ((network[0], 0), (network[0], -1), (network[-1], 0), (network[-1], 1))
    if 0 <= int(edge) + step < 2**network.max_prefixlen
]
ADDRESSES = (
    st.sampled_from(EDGES)
    | st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
    | st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)
    | st.integers(0x2000 << 112, (0x4000 << 112) - 1).map(ipaddress.IPv6Address)
    | st.ip_addresses()
).map(str)


def check_address(text: str) -> None:
    """What may be dialled is global unicast by Python's own tables too; what is no address is never dialled."""
    guard = Guard()
    url = f"https://[{text}]/" if ":" in text else f"https://{text}/"
    target = read_target(url)
    if isinstance(target, Refusal):
        return
    refused = guard.judge_address(target.origin, text) is not None
    assert isinstance(guard.judge_url(url), Refusal) or not refused
    if not refused:
        address = ipaddress.ip_address(text)
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_loopback, address.is_link_local))


# What is sent and what comes back

HEADER_TEXT = st.text("aZ0-_: ,;\t\r\n\0\x7fé", max_size=12) | st.sampled_from(
    ["Host", "X", "Content-Length", "Transfer-Encoding", "chunked", "a\r\n\r\nGET / HTTP/1.1\r\n", "0", "5", "close"]
)
NESTED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
BODIES = st.binary(max_size=60) | st.sampled_from([NESTED, b"0\r\n\r\n" + NESTED, b"\r\n" + NESTED])
REQUESTS = st.tuples(
    st.sampled_from(METHODS),
    URLS.map(lambda text: "http://example.com/" + text) | URLS,
    st.lists(st.tuples(HEADER_TEXT, HEADER_TEXT), max_size=4),
    st.none() | BODIES,
)


def check_writer(case: tuple[str, str, list[tuple[str, str]], bytes | None]) -> None:
    """What passes at PUT is written, and is for llhttp one request of that method, path, headers and body; all else is
    refused by the writer too."""
    method, url, headers, body = case
    target = read_target(url)
    if isinstance(target, Refusal):
        return
    try:
        fixed = head.fixed_head(target, method, headers, body)
    except ValueError:
        assert header_faults(headers)
        return
    stream = head.run_head(fixed, b"run_1", 0, 1, 0, b"v1,x") + (body or b"")
    first, second = read_requests(stream * 2)
    assert first == second
    assert (first.method, first.target) == (method.encode(), target.path.encode())
    assert first.body == (body or b"")
    assert first.headers == expected_headers(method, target, headers, body)


def expected_headers(
    method: str, target: target_text.Target, headers: list[tuple[str, str]], body: bytes | None
) -> list[tuple[bytes, bytes]]:
    own = [("Host", target.host_header), ("User-Agent", head.USER_AGENT), ("Accept-Encoding", "identity"), *headers]
    if body is not None or method in ("POST", "PUT", "PATCH"):
        own.append(("Content-Length", str(len(body or b""))))
    ours = [("Idempotency-Key", "run_1"), ("X-Scheduled-At", "1970-01-01T00:00:00Z"), ("X-Attempt", "1")]
    hooks = [("webhook-id", "run_1"), ("webhook-timestamp", "0"), ("webhook-signature", "v1,x")]
    return [(name.encode(), value.encode()) for name, value in own + ours + hooks]


DAMAGES = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3)), max_size=3)
ANSWERS = st.tuples(
    answers() | st.binary(max_size=200), DAMAGES, st.booleans(), st.lists(st.integers(1, 60), max_size=8)
)


def check_reader(case: tuple[bytes, list[tuple[int, bytes]], bool, list[int]]) -> None:
    """What is read at a glance llhttp reads alike; however the bytes are cut, the answer is the same and bounded."""
    data, damages, to_head, sizes = case
    for at, damage in damages:
        data = data[:at] + damage + data[at + len(damage) :]
    read = wire.read_answer(data, to_head)
    assert read is None or read == twin(data, to_head)
    whole, cut, last, rest = AnswerReader(to_head), AnswerReader(to_head), Reading.MORE, data
    reading = whole.feed(data)
    for size in [*sizes, len(data)]:
        piece, rest = rest[:size], rest[size:]
        if piece and last is Reading.MORE:
            last = cut.feed(piece)
    assert last is reading
    assert (cut.status, cut.retry_after, cut.excerpt) == (whole.status, whole.retry_after, whole.excerpt)
    assert len(whole.excerpt) <= 1_024


# Statements

BATCHES = st.tuples(
    st.binary(max_size=20),
    ROWS,
    st.binary(max_size=20),
    st.sampled_from([b"(", b"ROW("]),
    st.integers(1, 5),
    st.integers(0, 700),
)


def check_batch(case: tuple[Any, ...]) -> None:
    """The statements of the twin, or refused as by it."""
    assert outcome_of(batch.build, case) == outcome_of(batch_twin.build, case)


def outcome_of(build: Any, case: tuple[Any, ...]) -> object:
    try:
        return build(*case)
    except ValueError:
        return ValueError


# JSON bodies

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
SCALAR_TEXTS = st.sampled_from([
    "0", "-1", "1.5", "1e400", "-0", "01", "1.", "123456789012345678901", "true", "null", "NaN", "-Infinity", "",
    '"a"', '"\\u0061"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\""', '"[{"', '"\ufeff"', '"\0"', "'a'", "//",
])  # fmt: skip
KEY_TEXTS = st.sampled_from(['"a"', '"b"', '"\\u0061"', '""', "a", "1"])
NEARLY_JSON = st.recursive(
    SCALAR_TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda members: f"[{','.join(members)}]")
        | st.lists(st.tuples(KEY_TEXTS, inner).map(":".join), max_size=4).map(lambda pairs: "{" + ",".join(pairs) + "}")
    ),
    max_leaves=12,
)
DEEP = st.tuples(st.integers(55, 75), st.sampled_from(["[", '{"a":', '["]",', '["\\"",']), SCALAR_TEXTS).map(
    lambda parts: parts[1] * parts[0] + parts[2] + ("}" if parts[1][0] == "{" else "]") * parts[0]
)
JSON_TEXTS = (NEARLY_JSON | DEEP).map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=30)


def check_json(body: bytes) -> None:
    """What is read strictly is JSON for Python too and the same value; what is refused, one of its rules forbids."""
    read = read_or_none(body)
    assert (read is None) == is_forbidden(body)
    assert read is None or repr(read[0]) == repr(json.loads(body, parse_int=_number))


def read_or_none(body: bytes) -> list[Any] | None:
    try:
        return [read_json(body)]
    except NotJson:
        return None


def is_forbidden(body: bytes) -> bool:
    """The strict rules once more, plainly."""
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_finite)
        return _depth(value) > 64 or not _is_text(value)
    except (ValueError, RecursionError):
        return True


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _refuse(word: str) -> None:
    raise ValueError(word)


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError("beyond what a double holds")
    return float(text)


def _number(text: str) -> int | float:
    """Beyond 64 bits a number is a double, as for most readers of JSON."""
    return int(text) if -(2**63) <= int(text) < 2**64 else float(text)


def _depth(value: object) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(_depth, members), default=0)


def _is_text(value: object) -> bool:
    """No lone surrogate anywhere."""
    try:
        repr(value).encode() and json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


NOW_MS = 1_796_083_200_000
FIELD_VALUES = SCALARS | st.sampled_from([
    "30s", "1h", "-1s", "critical", "low", "all", "skip", "wait", "0 9 * * *", "* * * * * *", "UTC", "Europe/Paris",
    "2026-12-02T00:00:00Z", "2026-12-02T00:00:00.5+01:00", "https://example.com/", "http://127.0.0.1/", "POST", "AA==",
])  # fmt: skip
FIELD_NAMES = st.sampled_from(
    [*JOB.slots, *RETRY.slots, "cron", "time_zone", "run_at", "http", "url", "headers", "Host"]
)
ANY_OBJECT = st.recursive(
    FIELD_VALUES,
    lambda inner: st.dictionaries(FIELD_NAMES | st.text(max_size=4), inner, max_size=5) | st.lists(inner, max_size=3),
)
LIKELY_SCHEDULE = st.fixed_dictionaries(
    {"cron": EXPRESSION_TEXTS}, optional={"time_zone": FIELD_VALUES, "start_at": FIELD_VALUES, "end_at": FIELD_VALUES}
) | st.fixed_dictionaries({"run_at": FIELD_VALUES})
LIKELY_TARGET = st.fixed_dictionaries(
    {"url": URLS | st.just("https://example.com/x")},
    optional={
        "method": FIELD_VALUES,
        "headers": st.dictionaries(HEADER_TEXT, st.text(max_size=5) | ANY_OBJECT, max_size=3),
        "body": st.text(max_size=5),
        "body_base64": FIELD_VALUES,
    },
).map(lambda http: {"http": http})
JOBS = ANY_OBJECT | st.fixed_dictionaries(
    {"schedule": LIKELY_SCHEDULE | ANY_OBJECT, "target": LIKELY_TARGET | ANY_OBJECT},
    optional=dict.fromkeys((*(JOB.slots.keys() - {"schedule", "target"}), "nonsense"), FIELD_VALUES),
)


def check_job(document: Any) -> None:
    """Faults with a place, or a definition that is stored and answered and read again as itself."""
    reading = JobReading(NOW_MS, any_time=True)
    job = read_job(document, reading)
    if job is None or reading.faults:
        assert reading.faults
        assert all(fault.pointer == "" or fault.pointer.startswith("/") for fault in reading.faults)
        return
    stored = Definition.decode(job.definition.encode())
    assert stored == job.definition
    shown = show_definition(stored, lambda value: value)
    read_json(orjson.dumps(shown))
    secret = any(header.secret for header in getattr(stored.target, "headers", ()))
    again = JobReading(NOW_MS, any_time=True, stored=stored, fingerprint=lambda value: value)
    written = read_job(shown, again)
    assert written is not None, again.faults
    assert secret or written.definition == stored


TARGETS = {
    "cron": Target(
        st.tuples(EXPRESSION_TEXTS, INSTANTS, st.sampled_from(["UTC", *changing_zones()[::20]])),
        check_cron,
        lambda case, draw: (edited(case[0], draw), *case[1:]),
    ),
    "url": Target(URLS, check_url, edited),
    "address": Target(ADDRESSES, check_address, edited),
    "wire_writer": Target(REQUESTS, check_writer, lambda case, draw: (case[0], edited(case[1], draw), *case[2:])),
    "wire_reader": Target(ANSWERS, check_reader, lambda case, draw: (edited(case[0], draw), *case[1:])),
    "batch": Target(BATCHES, check_batch),
    "json": Target(JSON_TEXTS, check_json, edited),
    "job": Target(JOBS, check_job),
}
