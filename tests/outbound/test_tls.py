"""TLS: verified always, failures named, sessions resumed, and the same answers as without it."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from api.tls_door import server_context
from engine.model import OutcomeKind
from engine.outbound.client import Limits
from engine.outbound.pool import BEHIND_MS, PATIENCE_BEHIND_MS, PATIENCE_MS
from engine.outbound.tls import SESSION_AGE_MS_MAX, SESSION_RENEWED_MS, Sessions, client_context
from engine.trust import SYSTEM_AUTHORITIES
from engine.trust import trusting as trusted_databases
from tests.outbound.test_answers import CHUNKED
from tests.support.certificates import NAME, Authority
from tests.support.clock import SettableClock
from tests.support.peer import OK, Names, answering, in_loop, once, outbound, serving
from tests.support.wait import until_async


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def url(peer):
    return f"https://{NAME}:{peer.port}/"


def trusting(authority, **options):
    return outbound(names=Names("127.0.0.1"), trusted=authority.file, **options)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@in_loop
async def test_calls_over_tls_share_a_connection(authority, version):
    context = authority.server()
    context.minimum_version = context.maximum_version = version
    async with serving(answering(OK), context) as peer, trusting(authority) as out:
        for _ in range(5):
            outcome = await out.call(url(peer), body=b"x" * 100_000)
            assert (outcome.kind, outcome.status, outcome.body) == (OutcomeKind.ANSWERED, 200, b"ok")
        assert peer.visits == 1


def test_p9_no_keys_of_sessions_are_written_whatever_the_environment_says(authority, tmp_path, monkeypatch):
    log = tmp_path / "keys.log"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    assert ssl.create_default_context().keylog_filename == str(log), "Python does, where nobody forbids it"

    async def body():
        async with serving(answering(OK), authority.server()) as peer, trusting(authority) as out:
            assert (await out.call(url(peer))).status == 200

    asyncio.run(body())
    door = server_context(tmp_path / "server.pem", tmp_path / "server.pem")
    trusted_databases.cache_clear()
    contexts = [client_context(), trusted_databases(SYSTEM_AUTHORITIES), door]
    trusted_databases.cache_clear()
    assert [context.keylog_filename for context in contexts] == [None] * 3
    assert b"CLIENT_" not in log.read_bytes()
    assert b"SERVER_" not in log.read_bytes()


REFUSED = {
    "tls_expired": {"begins": timedelta(-9), "ends": timedelta(-1)},
    "tls_not_yet_valid": {"begins": timedelta(1), "ends": timedelta(9)},
    "tls_self_signed": {"self_signed": True},
    "tls_wrong_host": {"name": "other.example.com"},
    "tls_wrong_purpose": {"usage": ExtendedKeyUsageOID.CLIENT_AUTH},
}


@pytest.mark.parametrize("reason", REFUSED)
@in_loop
async def test_p9_a_certificate_that_proves_nothing_is_refused_by_name(authority, reason):
    requests = []

    async def script(visit):
        requests.append(await visit.request())

    async with serving(script, authority.server(**REFUSED[reason])) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason, outcome.bytes_sent) == (OutcomeKind.TLS_FAILED, reason, False)
        assert outcome.detail
        assert out.client.connections == 0
        assert not requests


@in_loop
async def test_p9_a_certificate_by_an_unknown_authority_is_refused(authority, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with serving(answering(OK), other.server()) as peer, trusting(authority) as out:
        assert (await out.call(url(peer))).reason == "tls_untrusted"


@in_loop
async def test_p9_a_certificate_for_a_name_does_not_serve_for_an_address(authority):
    async with serving(answering(OK), authority.server()) as peer, trusting(authority) as out:
        assert (await out.call(f"https://127.0.0.1:{peer.port}/")).reason == "tls_wrong_host"


@pytest.fixture
def old_server(authority, request):
    """Blocking, in a thread: uvloop's own TLS hangs up where OpenSSL says what is wrong."""
    context = authority.server()
    context.minimum_version = context.maximum_version = request.param
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=shake_hands_once, args=(listener, context))
        thread.start()
        yield listener
        thread.join(5)


def shake_hands_once(listener, context):
    accepted, _ = listener.accept()
    with accepted, contextlib.suppress(ssl.SSLError):
        context.wrap_socket(accepted, server_side=True)


@pytest.mark.parametrize("old_server", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], indirect=True)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@in_loop
async def test_a_protocol_older_than_tls_1_2_is_refused(authority, old_server):
    async with trusting(authority) as out:
        outcome = await out.call(f"https://{NAME}:{old_server.getsockname()[1]}/")
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TLS_FAILED, "tls_old_protocol"), outcome.detail


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 50, b"\x16\x03\x03\x00\x02zz", b""]
)
@in_loop
async def test_what_is_no_handshake_is_a_tls_failure(authority, greeting):
    async def script(visit):
        await visit.read()
        await visit.say(greeting)

    async with serving(script) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TLS_FAILED, "tls_failed")
        assert out.client.connections == 0


@in_loop
async def test_a_handshake_that_hangs_is_given_up(authority, monkeypatch):
    monkeypatch.setattr("engine.outbound.tls.FLIGHT_MS_MAX", 50)

    async def script(visit):
        while await visit.read():
            pass

    async with serving(script) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TLS_FAILED, "tls_timeout")
        await until_async(lambda: peer.ended)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@in_loop
async def test_a_second_connection_takes_up_the_session_of_the_first(authority, version):
    resumed = []

    async def script(visit):
        await visit.request()
        resumed.append(visit.writer.get_extra_info("ssl_object").session_reused)
        await visit.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    context = authority.server()
    context.minimum_version = context.maximum_version = version
    async with serving(script, context) as peer, trusting(authority) as out:
        for _ in range(3):
            assert (await out.call(url(peer))).status == 200
        assert (await out.call(url(peer), tenant_id=2)).status == 200
        assert resumed == [False, True, True, False]  # and never another tenant's


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, b"x" * 1024),
    ],
)
@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
@in_loop
async def test_answers_are_read_across_records(authority, answer, body, size):
    if size == 1 and len(answer) > 1000:
        pytest.skip("covered by smaller answers")
    pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
    async with serving(once(*pieces), authority.server()) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.body) == (OutcomeKind.ANSWERED, body)


@in_loop
async def test_an_answer_cut_off_over_tls_is_a_broken_connection(authority):
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"
    async with serving(once(cut), authority.server()) as peer, trusting(authority) as out:
        assert (await out.call(url(peer))).reason == "answer_cut"


@in_loop
async def test_bytes_on_an_idle_tls_connection_close_it(authority):
    async def script(visit):
        await visit.request()
        await visit.say(OK)
        await visit.say(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        await visit.read()

    async with serving(script, authority.server()) as peer, trusting(authority) as out:
        assert (await out.call(url(peer))).body == b"ok"
        await until_async(lambda: out.client.connections == 0)
        assert (await out.call(url(peer))).body == b"ok"


@in_loop
async def test_garbage_in_the_stream_is_a_broken_connection(authority):
    async def script(visit):
        await visit.request()
        transport = visit.writer.transport
        transport.get_extra_info("socket")
        os.write(transport.get_extra_info("socket").fileno(), b"garbage that is no record")
        await visit.read()

    async with serving(script, authority.server()) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.CONNECTION_BROKEN, "connection_broken")


@in_loop
async def test_warm_shakes_hands_before_the_second(authority):
    async with serving(answering(OK), authority.server()) as peer, trusting(authority) as out:
        assert await out.client.warm(1, out.target(url(peer)).origin, 10) is None
        assert out.client.idle == 10
        outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(10)))
        assert {outcome.status for outcome in outcomes} == {200}
        assert peer.visits == 10


@in_loop
async def test_ten_thousand_broken_handshakes_leak_no_socket(authority):
    ends = [
        lambda visit: None,
        lambda visit: visit.reset(),
        lambda visit: visit.writer.write(b"\x15\x03\x03\x00\x02\x02\x28"),
    ]

    async def script(visit):
        if visit.number % 2:
            await visit.read()
        ends[visit.number % 3](visit)

    count, at_once = 10_000, 100
    async with serving(script) as peer, trusting(authority, limits=Limits(connections_per_origin=at_once)) as out:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(0, count, at_once):
            outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(at_once)))
            assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.TLS_FAILED, OutcomeKind.CONNECT_FAILED}
        assert peer.visits == count
        assert out.client.connections == 0
        assert not out.client._pools
        await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)


@in_loop
async def test_a_handshake_that_drips_is_given_up(authority):
    async def script(visit):
        await visit.read()
        await visit.say(b"\x16\x03\x03\x40\x00", *[b"\x02"] * 100)

    async with serving(script) as peer, trusting(authority) as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TLS_FAILED, "tls_timeout")
        assert out.client.connections == 0


@in_loop
async def test_a_cold_burst_over_tls_opens_one_connection_and_shares_it(authority):
    async with serving(answering(OK), authority.server()) as peer, trusting(authority) as out:
        outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(50)))
        assert {outcome.status for outcome in outcomes} == {200}
        assert peer.visits < 10


@in_loop
async def test_the_wait_for_a_handshake_opens_no_further_connection(authority):
    clock, never = SettableClock(1_000_000), asyncio.Event()

    async def script(visit):
        await never.wait()

    async with serving(script, authority.server()) as peer, trusting(authority, clock=clock) as out:
        calls = [out.start(url(peer)) for _ in range(2)]
        clock.advance(10 * PATIENCE_MS["https"])
        await until_async(lambda: peer.visits == 1)
        (pool,) = out.client._pools.values()
        pool.look(clock.now_ms())
        assert out.client.connections == 1
        clock.advance(PATIENCE_MS["https"])
        pool.look(clock.now_ms())
        assert out.client.connections == 2
        assert not any(call.done() for call in calls)
        never.set()


@in_loop
async def test_while_one_connection_serves_what_waits_soon_no_other_is_opened(authority):
    clock, served = SettableClock(1_000_000), asyncio.Semaphore(0)

    async def script(visit):
        while True:
            await visit.request()
            await served.acquire()
            await visit.say(OK)

    async with serving(script, authority.server()) as peer, trusting(authority, clock=clock) as out:
        calls = [out.start(url(peer)) for _ in range(12)]
        await until_async(lambda: peer.visits == 1 and out.client.waiting == 11)
        (pool,) = out.client._pools.values()
        pool.look(clock.now_ms())
        for _ in range(3):
            served.release()
        await until_async(lambda: out.client.waiting == 8)
        clock.advance(PATIENCE_MS["https"])
        pool.look(clock.now_ms())  # three in 250 ms: the other eight are done within a second
        assert out.client.connections == 1
        clock.advance(PATIENCE_MS["https"])
        pool.look(clock.now_ms())  # nothing since
        assert out.client.connections == 2
        for _ in calls:
            served.release()
        assert {outcome.status for outcome in await asyncio.gather(*calls)} == {200}


@in_loop
async def test_while_the_event_loop_is_behind_requests_wait_longer_before_a_handshake_is_added(authority):
    clock, never = SettableClock(1_000_000), asyncio.Event()

    async def script(visit):
        await never.wait()

    async with serving(script, authority.server()) as peer, trusting(authority, clock=clock) as out:
        for _ in range(2):
            out.start(url(peer))
        await until_async(lambda: peer.visits == 1 and out.client.waiting == 1)
        (pool,) = out.client._pools.values()
        out.client.deadlines.late_ms = BEHIND_MS
        clock.advance(PATIENCE_BEHIND_MS["https"] - 1)
        assert pool.look(clock.now_ms()) == clock.now_ms() + 1
        assert out.client.connections == 1
        clock.advance(1)
        pool.look(clock.now_ms())
        assert out.client.connections == 2
        never.set()


class Stream:
    """A connection's TLS, as far as its session goes."""

    def __init__(self, session, reused=False, has_ticket=True):
        self.ssl = SimpleNamespace(
            session=SimpleNamespace(name=session, has_ticket=has_ticket),
            session_reused=reused,
            version=lambda: "TLSv1.3",
        )


def test_p9_a_session_is_taken_up_for_ten_minutes_after_its_full_handshake_however_often_it_is_renewed():
    sessions = Sessions()
    sessions.keep("origin", Stream("full"), 0)
    for now_ms in range(SESSION_RENEWED_MS, SESSION_AGE_MS_MAX + 1, SESSION_RENEWED_MS):
        sessions.keep("origin", Stream(now_ms, reused=True), now_ms)
        assert sessions.find("origin", now_ms).name == now_ms
    assert sessions.find("origin", SESSION_AGE_MS_MAX + 1) is None
    sessions.keep("origin", Stream("full again"), SESSION_AGE_MS_MAX + SESSION_RENEWED_MS)
    assert sessions.find("origin", SESSION_AGE_MS_MAX + SESSION_RENEWED_MS).name == "full again"


def test_a_session_is_copied_at_most_once_a_minute_and_only_if_it_can_be_taken_up():
    sessions = Sessions()
    sessions.keep("origin", Stream("no ticket yet", has_ticket=False), 0)
    assert sessions.find("origin", 0) is None
    sessions.keep("origin", Stream("first"), 1)
    sessions.keep("origin", Stream("second"), SESSION_RENEWED_MS)
    assert sessions.find("origin", SESSION_RENEWED_MS).name == "first"
    sessions.keep("unknown", Stream("of unknown age", reused=True), 0)
    assert sessions.find("unknown", 0) is None


def test_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr("engine.outbound.tls.SESSIONS_MAX", 2)
    sessions = Sessions()
    for number in range(4):
        sessions.keep(number, Stream(number), 0)
    assert [bool(sessions.find(number, 0)) for number in range(4)] == [False, False, True, True]
