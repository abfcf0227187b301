"""The client against servers that misbehave in every way: each ends in the right outcome, and closes what it must."""

import asyncio
import contextlib
import functools
import os
import socket
import struct

import pytest
import uvloop

from engine.model import OutcomeKind
from engine.outbound.answer import BODY_BYTES_MAX, HEAD_BYTES_MAX
from engine.outbound.client import Limits
from engine.outbound.connection import AGE_MS_MAX, IDLE_MS_MAX, Connection
from engine.outbound.exchange import Failure
from engine.outbound.pool import OPENED_AT_FIRST
from engine.outbound.target import Guard
from tests.support.clock import SettableClock
from tests.support.peer import OK, Names, answering, once, outbound, serving
from tests.support.wait import until_async


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **options):
        uvloop.run(asyncio.wait_for(test(*args, **options), 30))

    return run


def url(peer, path="/"):
    return f"http://127.0.0.1:{peer.port}{path}"


@in_loop
async def test_calls_one_after_the_other_share_a_connection():
    async with serving(answering(OK)) as peer, outbound() as out:
        for _ in range(5):
            outcome = await out.call(url(peer))
            assert (outcome.kind, outcome.status, outcome.body, outcome.bytes_sent) == (
                OutcomeKind.ANSWERED, 200, b"ok", True,
            )  # fmt: skip
        assert peer.visits == 1


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

# Answers that are whole, what is read of them, and whether their connection serves another call.
WHOLE = {
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "no_content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not_modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    "no_reason": (b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n", 302, b"", True),
    "server_error": (b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno", 503, b"no", True),
    "high_status": (b"HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n", 799, b"", True),
    "chunked": (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 200, b"ok", True),
    "chunks": (CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 200, b"ok", True),
    "chunk_extensions": (CHUNKED + b"2;a=b\r\nok\r\n0;c\r\n\r\n", 200, b"ok", True),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\nRetry-After: 9\r\nX: y\r\n\r\n", 200, b"ok", True),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    "close_among_others": (b"HTTP/1.1 200 OK\r\nConnection: x, close\r\nContent-Length: 0\r\n\r\n", 200, b"", False),
    "keep_alive": (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    "http_1_0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    "http_1_0_keep_alive": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", True),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nRetry-After: 3\r\n\r\n" + OK, 200, b"ok", True),
    "hints_and_chunks": (b"HTTP/1.1 103 E\r\n\r\n" * 3 + CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 200, b"ok", True),
    "many_headers": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"Content-Length: 2\r\n\r\nok", 200, b"ok", True),
    "long_body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99_999, 200, b"x" * 1024, True),
    "more_than_asked": (OK + b"more", 200, b"ok", False),
    "two_answers": (OK + OK, 200, b"ok", False),
    "odd_bytes_in_values": (b"HTTP/1.1 200 \xe4\r\nX: \xff\t y \r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("pieces", ["whole", "halves", "bytes"])
@in_loop
async def test_whole_answers(name, pieces):
    answer, status, body, stays_open = WHOLE[name]
    if pieces == "bytes" and len(answer) > 300:
        pytest.skip("the same in fewer pieces is enough")
    size = {"whole": len(answer), "halves": len(answer) // 2 + 1, "bytes": 1}[pieces]
    cut = [answer[i : i + size] for i in range(0, len(answer), size)]

    async def script(visit):
        while True:
            await visit.request()
            await visit.say(*cut)

    async with serving(script) as peer, outbound() as out:
        for calls in range(1, 4):
            outcome = await out.call(url(peer))
            assert (outcome.kind, outcome.status, outcome.body) == (OutcomeKind.ANSWERED, status, body)
            assert outcome.retry_after == (b"7" if name == "server_error" else None)
            if name in ("more_than_asked", "two_answers") and pieces != "whole":
                await until_async(lambda: not out.client.idle)  # the rest comes later, and closes it
            assert peer.visits == (1 if stays_open else calls)


@in_loop
async def test_an_answer_that_ends_with_its_connection_is_whole():
    async with serving(once(b"HTTP/1.1 200 OK\r\n\r\n", b"o", b"k")) as peer, outbound() as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.body) == (OutcomeKind.ANSWERED, b"ok")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
@in_loop
async def test_the_answer_to_a_head_has_no_body(answer):
    async with serving(answering(answer)) as peer, outbound() as out:
        for _ in range(3):
            assert (await out.call(url(peer), method="HEAD")).kind is OutcomeKind.ANSWERED
        assert peer.visits == 1


@in_loop
async def test_a_body_after_the_answer_to_a_head_costs_the_connection():
    async with serving(answering(OK)) as peer, outbound() as out:
        for _ in range(3):
            outcome = await out.call(url(peer), method="HEAD")
            assert (outcome.kind, outcome.body) == (OutcomeKind.ANSWERED, b"")
        assert peer.visits == 3


CUT = {
    "nothing": (b"", "connection_broken"),
    "half_a_status_line": (b"HTTP/1.1 20", "answer_cut"),
    "half_a_head": (b"HTTP/1.1 200 OK\r\nContent-Le", "answer_cut"),
    "no_body": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "answer_cut"),
    "half_a_body": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", "answer_cut"),
    "half_a_chunk": (CHUNKED + b"2\r\no", "answer_cut"),
    "no_last_chunk": (CHUNKED + b"2\r\nok\r\n", "answer_cut"),
    "only_an_interim_one": (b"HTTP/1.1 100 Continue\r\n\r\n", "answer_cut"),
}


@pytest.mark.parametrize("name", CUT)
@in_loop
async def test_a_peer_that_closes_too_early_broke_the_connection(name):
    answer, reason = CUT[name]
    async with serving(once(answer)) as peer, outbound() as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason, outcome.status) == (OutcomeKind.CONNECTION_BROKEN, reason, None)
        assert peer.visits == 1


BROKEN = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello",
    "another_protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "old_http": b"<html>hello</html>\r\n",
    "http_2": b"HTTP/2.0 200 OK\r\n\r\n",
    "no_status": b"HTTP/1.1 abc OK\r\n\r\n",
    "lengths_that_differ": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "length_and_chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length_not_a_number": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
    "length_too_large": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
    "chunk_not_a_number": CHUNKED + b"xyz\r\n\r\n",
    "chunk_too_large": CHUNKED + b"fffffffffffffffffffffff\r\n\r\n",
    "chunk_without_its_end": CHUNKED + b"2\r\nokxx0\r\n\r\n",
    "name_with_a_space": b"HTTP/1.1 200 OK\r\nContent Length: 2\r\n\r\nok",
    "space_before_the_colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
    "nul_in_a_value": b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 2\r\n\r\nok",
    "switching_protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
}


@pytest.mark.parametrize("name", BROKEN)
@in_loop
async def test_garbage_is_a_protocol_error_and_closes_the_connection(name):
    async def script(visit):
        await visit.request()
        await visit.say(BROKEN[name])
        assert not await visit.read()

    async with serving(script) as peer, outbound() as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.PROTOCOL_ERROR, "answer_malformed"), outcome
        assert outcome.detail
        await until_async(lambda: peer.ended)


LARGE_HEADS = {
    "one_long_line": [b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX],
    "endless_lines": [b"HTTP/1.1 200 OK\r\n"] + [b"X: y\r\n" * 1000] * 20,
    "endless_status": [b"HTTP/1.1 200 " + b"x" * 100_000],
    "endless_interim_answers": [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000] * 10,
    "just_too_large_and_whole": [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n"],
}


@pytest.mark.parametrize("name", LARGE_HEADS)
@in_loop
async def test_a_head_that_is_too_large_is_given_up(name):
    async with serving(once(*LARGE_HEADS[name])) as peer, outbound() as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.reason) == (OutcomeKind.ANSWER_TOO_LARGE, "answer_head_too_large")


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED]
)
@in_loop
async def test_a_gigabyte_is_cut_off_and_the_call_counts_as_answered(head):
    sent = 0

    async def script(visit):
        nonlocal sent
        await visit.request()
        await visit.say(head)
        while sent < 1 << 30:
            await visit.say((b"10000\r\n" + b"x" * 65536 + b"\r\n") if head == CHUNKED else b"x" * 65536)
            sent += 65536

    async with serving(script) as peer, outbound() as out:
        outcome = await out.call(url(peer))
        assert (outcome.kind, outcome.status, outcome.body) == (OutcomeKind.ANSWERED, 200, b"x" * 1024)
        await until_async(lambda: peer.ended)
        assert peer.ended != [""]
        assert sent < 64 * BODY_BYTES_MAX  # what fits into the kernel's buffers on both sides


@in_loop
async def test_an_answer_that_drips_is_timed_out_and_its_socket_closed_first():
    async def script(visit):
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            await visit.say(b"d", b"r", b"i", b"p")

    async with serving(script) as peer, outbound() as out:
        told = asyncio.get_running_loop().create_future()
        sent_ms = out.client.now_ms()
        out.client.send(
            out.request(url(peer), timeout_ms=100),
            lambda _, outcome: told.set_result((outcome, out.client.connections)),
            "token",
        )
        outcome, connections_when_told = await told
        assert (outcome.kind, outcome.bytes_sent) == (OutcomeKind.TIMEOUT, True)
        assert connections_when_told == 0
        assert 100 <= outcome.finished_ms - sent_ms < 1000  # its time runs from when it was handed over
        await until_async(lambda: peer.ended)
        assert peer.ended != [""]


@in_loop
async def test_an_endpoint_that_hangs_is_timed_out_also_on_a_reused_connection():
    async def script(visit):
        await visit.request()
        await visit.say(OK)
        await visit.request()
        await visit.read()

    async with serving(script) as peer, outbound() as out:
        await out.call(url(peer), timeout_ms=30_000)
        outcome = await out.call(url(peer), timeout_ms=50)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert peer.visits == 1


@pytest.mark.parametrize("after", ["close", "reset", "wait"])
@in_loop
async def test_an_answer_that_came_before_the_body_was_read_is_the_answer(after):
    async def script(visit):
        await visit.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        if after == "wait":
            await asyncio.Event().wait()
        if after == "reset":
            visit.reset()

    async with serving(script) as peer, outbound() as out:
        outcome = await out.call(url(peer), body=b"x" * 20_000_000)
        if after == "reset":  # a reset may overtake the answer
            assert outcome.kind in (OutcomeKind.ANSWERED, OutcomeKind.CONNECTION_BROKEN)
        else:
            assert (outcome.kind, outcome.status) == (OutcomeKind.ANSWERED, 413)
        assert out.client.connections == 0  # half a request is on it


@in_loop
async def test_a_large_body_arrives_whole():
    body = bytes(range(256)) * 40_000
    got = []

    async def script(visit):
        got.append(await visit.request())
        await visit.say(OK)

    async with serving(script) as peer, outbound() as out:
        assert (await out.call(url(peer), body=body)).status == 200
        assert got[0].endswith(b"\r\n\r\n" + body)


@in_loop
async def test_bytes_on_an_idle_connection_close_it():
    async def script(visit):
        await visit.request()
        await visit.say(OK, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        await visit.read()

    async with serving(script) as peer, outbound() as out:
        assert (await out.call(url(peer))).body == b"ok"
        await until_async(lambda: out.client.connections == 0)
        assert (await out.call(url(peer))).body == b"ok"
        assert peer.visits == 2


class RawPeer:
    """A peer that acts between two turns of the event loop, so that the client cannot have noticed."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(5)
        self.port = self.listener.getsockname()[1]

    async def accept(self):
        self.listener.setblocking(False)
        accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        accepted.settimeout(5)
        return accepted

    async def first_call(self, out):
        """One call answered; the connection is idle and reusable afterwards."""
        call = out.start(url(self))
        accepted = await self.accept()
        await self.answer(accepted)
        assert (await call).status == 200
        return accepted

    async def answer(self, accepted):
        accepted.setblocking(False)
        assert b"POST / " in await asyncio.get_running_loop().sock_recv(accepted, 65536)
        accepted.send(OK)


def close(accepted):
    accepted.close()


def reset(accepted):
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()


def speak(accepted):
    accepted.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")


@pytest.mark.parametrize("act", [close, reset, speak])
@in_loop
async def test_what_happened_to_an_idle_connection_is_asked_before_the_write(act):
    clock = SettableClock(1_000_000)
    async with outbound(clock=clock) as out:
        peer = RawPeer()
        first = await peer.first_call(out)
        clock.advance(1)
        act(first)
        call = out.start(url(peer))
        await peer.answer(await peer.accept())
        outcome = await call
        assert (outcome.kind, outcome.body) == (OutcomeKind.ANSWERED, b"ok")
        first.close()


@pytest.mark.parametrize("act", [close, reset])
@in_loop
async def test_p3_a_request_that_met_a_closed_connection_is_sent_again_on_a_fresh_one(act, monkeypatch):
    monkeypatch.setattr(Connection, "_silent", lambda _: True)  # closed between the look and the write
    clock = SettableClock(1_000_000)
    async with outbound(clock=clock) as out:
        peer = RawPeer()
        act(await peer.first_call(out))
        call = out.start(url(peer))
        await peer.answer(await peer.accept())
        assert (await call).status == 200
        assert out.client.sent_again == 1


def read_and_close(accepted):
    assert accepted.recv(65536)
    accepted.close()


def read_and_reset(accepted):
    assert accepted.recv(65536)
    reset(accepted)


def close_unread(accepted):
    accepted.close()  # the kernel resets, because something was left unread


@pytest.mark.parametrize("act", [read_and_close, read_and_reset, close_unread])
@in_loop
async def test_p3_a_request_that_may_have_been_read_is_a_failed_try(act):
    async with outbound() as out:
        peer = RawPeer()
        accepted = await peer.first_call(out)
        call = out.start(url(peer))
        accepted.setblocking(True)
        act(accepted)
        outcome = await call
        assert (outcome.kind, outcome.bytes_sent) == (OutcomeKind.CONNECTION_BROKEN, True)
        assert out.client.sent_again == 0


@in_loop
async def test_a_request_that_broke_on_a_fresh_connection_is_a_failed_try():
    async with outbound() as out:
        peer = RawPeer()
        call = out.start(url(peer))
        reset(await peer.accept())
        assert (await call).kind is OutcomeKind.CONNECTION_BROKEN


@in_loop
async def test_a_connection_broken_after_a_byte_of_the_answer_is_a_failed_try():
    async with outbound() as out:
        peer = RawPeer()
        accepted = await peer.first_call(out)
        call = out.start(url(peer))
        accepted.send(b"H")
        accepted.close()
        assert (await call).kind is OutcomeKind.CONNECTION_BROKEN
        assert out.client.sent_again == 0


@pytest.mark.parametrize(("advance_ms", "visits"), [(IDLE_MS_MAX, 1), (IDLE_MS_MAX + 1, 2)])
@in_loop
async def test_a_connection_serves_until_it_was_idle_for_four_seconds(advance_ms, visits):
    clock = SettableClock(1_000_000)
    async with serving(answering(OK)) as peer, outbound(clock=clock) as out:
        await out.call(url(peer))
        clock.advance(advance_ms)
        await out.call(url(peer))
        assert peer.visits == visits


@in_loop
async def test_a_connection_serves_for_five_minutes_at_most():
    clock = SettableClock(1_000_000)
    async with serving(answering(OK)) as peer, outbound(clock=clock) as out:
        for _ in range(0, AGE_MS_MAX + 1, IDLE_MS_MAX):
            assert (await out.call(url(peer))).status == 200
            assert peer.visits == 1
            clock.advance(IDLE_MS_MAX)
        await out.call(url(peer))
        assert peer.visits == 2


@in_loop
async def test_idle_connections_are_closed_without_another_call(monkeypatch):
    monkeypatch.setattr("engine.outbound.connection.IDLE_MS_MAX", 50)
    monkeypatch.setattr("engine.outbound.pool.IDLE_MS_MAX", 50)
    async with serving(answering(OK)) as peer, outbound() as out:
        await out.call(url(peer))
        assert out.client.connections == 1
        await until_async(lambda: out.client.connections == 0)
        assert not out.client._pools
        await until_async(lambda: peer.ended == ["IncompleteReadError"])


@in_loop
async def test_p9_two_tenants_never_share_a_connection():
    async with serving(answering(OK)) as peer, outbound() as out:
        for _ in range(3):
            for tenant_id in (1, 2):
                assert (await out.call(url(peer), tenant_id=tenant_id)).status == 200
        assert peer.visits == 2


@pytest.mark.parametrize("bound", [1, 2, 7])
@in_loop
async def test_connections_to_one_origin_are_bounded_and_the_rest_waits_in_order(bound):
    order = []

    async def script(visit):
        while True:
            order.append((await visit.request()).split()[1])
            await visit.say(OK)

    async with serving(script) as peer, outbound(limits=Limits(connections_per_origin=bound)) as out:
        calls = [out.start(url(peer, f"/{i:02}")) for i in range(30)]
        assert all(outcome.status == 200 for outcome in await asyncio.gather(*calls))
        assert 1 <= peer.visits <= bound
        assert bound > 1 or sorted(order) == order


@in_loop
async def test_at_the_bound_of_all_connections_idle_ones_make_room():
    limits = Limits(connections=3)
    async with serving(answering(OK)) as peer, outbound(limits=limits) as out:
        for tenant_id in range(10):
            assert (await out.call(url(peer), tenant_id=tenant_id)).status == 200
            assert out.client.connections <= 3


@in_loop
async def test_at_the_bound_of_all_connections_the_others_wait_until_one_is_free():
    limits = Limits(connections=2)
    async with serving(answering(OK)) as peer, outbound(limits=limits) as out:
        outcomes = await asyncio.gather(*(out.start(url(peer), tenant_id=i % 5) for i in range(25)))
        assert {outcome.status for outcome in outcomes} == {200}, outcomes


@in_loop
async def test_a_request_that_finds_no_connection_in_time_sent_nothing():
    async def script(visit):
        await visit.request()
        await visit.read()

    async with serving(script) as peer, outbound(limits=Limits(connections_per_origin=1)) as out:
        first = out.start(url(peer), timeout_ms=300)
        outcome = await out.call(url(peer), timeout_ms=50)
        assert (outcome.kind, outcome.bytes_sent) == (OutcomeKind.TIMEOUT, False)
        assert (await first).bytes_sent
        assert not out.client._pools


@in_loop
async def test_an_aborted_call_is_not_told_and_its_connection_is_closed():
    async def script(visit):
        await visit.request()
        await visit.read()

    async with serving(script) as peer, outbound(limits=Limits(connections_per_origin=1)) as out:
        called, waiting = out.start(url(peer)), out.start(url(peer))
        await until_async(lambda: peer.visits)
        assert out.client.abort(waiting)
        assert out.client.abort(called)
        assert not out.client.abort(called)
        assert out.client.connections == 0
        await until_async(lambda: peer.ended)
        assert not called.done()
        assert not waiting.done()


@in_loop
async def test_a_call_aborted_while_its_connection_is_opened_sends_nothing():
    async with serving(answering(OK)) as peer, outbound() as out:
        call = out.start(url(peer))
        assert out.client.abort(call)
        assert (await out.call(url(peer))).status == 200
        assert peer.visits <= 2
        assert not call.done()


@in_loop
async def test_the_same_token_twice_in_flight_is_a_mistake():
    async with serving(answering(OK)) as peer, outbound() as out:
        request = out.request(url(peer))
        told = asyncio.Event()
        out.client.send(request, lambda *_: told.set(), 1)
        with pytest.raises(ValueError, match="in flight"):
            out.client.send(request, lambda *_: None, 1)
        await told.wait()
        out.client.send(request, lambda *_: None, 1)


@in_loop
async def test_p4_the_start_is_read_before_the_first_byte_can_arrive():
    async with serving(answering(OK)) as peer, outbound() as out:
        await out.client.warm(1, out.target(url(peer)).origin, 1)
        before_ms = out.client.now_ms()
        outcome = await out.call(url(peer))
        assert before_ms <= outcome.started_ms <= outcome.finished_ms <= out.client.now_ms()


@in_loop
async def test_nobody_is_called_back_while_sending():
    async with outbound() as out:
        told = []
        out.client.send(out.request("http://127.0.0.1:1/"), lambda token, outcome: told.append(outcome), 1)
        assert not told
        await until_async(lambda: told)


@in_loop
async def test_warm_opens_as_many_connections_as_the_burst_can_use_and_no_more():
    async with serving(answering(OK)) as peer, outbound(limits=Limits(connections_per_origin=30)) as out:
        origin = out.target(url(peer)).origin
        assert await out.client.warm(1, origin, 20) is None
        assert (out.client.connections, out.client.idle) == (20, 20)
        assert await out.client.warm(1, origin, 20) is None
        assert out.client.connections == 20
        assert await out.client.warm(1, origin, 1000) is None
        assert out.client.connections == 30
        outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(30)))
        assert all(outcome.status == 200 for outcome in outcomes)
        assert peer.visits == 30


@in_loop
async def test_a_refused_connection_says_so():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with outbound() as out:
        outcome = await out.call(f"http://127.0.0.1:{port}/")
        assert (outcome.kind, outcome.reason, outcome.bytes_sent) == (
            OutcomeKind.CONNECT_FAILED, "connect_refused", False,
        )  # fmt: skip
        assert (await out.client.warm(1, out.target(f"http://127.0.0.1:{port}/").origin, 5)).reason == "connect_refused"
        assert out.client.connections == 0
        assert not out.client._pools


@in_loop
async def test_every_address_of_a_name_is_tried():
    async with serving(answering(OK)) as peer, outbound(names=Names("127.0.0.2 127.0.0.3 127.0.0.1")) as out:
        for tenant_id in range(5):
            assert (await out.call(f"http://example.com:{peer.port}/", tenant_id=tenant_id)).status == 200


@in_loop
async def test_a_name_without_an_address_is_a_dns_failure():
    async with outbound(names=Names()) as out:
        outcome = await out.call("http://example.com/")
        assert (outcome.kind, outcome.reason, outcome.detail) == (OutcomeKind.DNS_FAILED, "dns_failed", "no such name")


@in_loop
async def test_p9_a_name_that_moves_between_put_and_call_reaches_no_forbidden_address():
    async with serving(answering(OK)) as peer, outbound(names=Names("127.0.0.1", "10.0.0.1")) as out:
        target = f"http://example.com:{peer.port}/"
        assert (await out.call(target, tenant_id=1)).status == 200
        outcome = await out.call(target, tenant_id=2)
        assert (outcome.kind, outcome.reason, outcome.bytes_sent) == (
            OutcomeKind.TARGET_REFUSED, "target_refused", False,
        )  # fmt: skip
        assert "10.0.0.0/8" in outcome.detail
        assert peer.visits == 1


@pytest.mark.parametrize("addresses", ["127.0.0.1 10.0.0.1", "10.0.0.1 127.0.0.1", "127.0.0.1 ::ffff:127.0.0.1"])
@in_loop
async def test_p9_a_name_with_one_forbidden_address_is_refused_whole(addresses):
    async with serving(answering(OK)) as peer, outbound(names=Names(addresses)) as out:
        origin = out.target(f"http://example.com:{peer.port}/").origin
        assert (await out.call(f"http://example.com:{peer.port}/")).kind is OutcomeKind.TARGET_REFUSED
        assert (await out.client.warm(1, origin, 3)).kind is OutcomeKind.TARGET_REFUSED
        assert peer.visits == 0


@in_loop
async def test_p9_nothing_reaches_a_listener_whatever_the_name_resolves_to():
    """A real connect counter: listeners on loopback that only the guard stands before."""
    tricks = [
        "127.0.0.1",
        "127.0.0.2",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "127.0.0.1%lo",
        "127.1",
    ]
    async with serving(answering(OK)) as v4, serving(answering(OK), host="::1") as v6:
        guard = Guard(allowed_ports=[v4.port, v6.port])
        for address in tricks:
            async with outbound(names=Names(address), guard=guard) as out:
                for port in (v4.port, v6.port):
                    outcome = await out.call(f"http://example.com:{port}/")
                    assert outcome.kind is OutcomeKind.TARGET_REFUSED, (address, outcome)
        assert v4.visits == v6.visits == 0


@in_loop
async def test_connections_to_an_address_the_name_no_longer_has_are_given_up_when_warming():
    async with serving(answering(OK)) as peer, outbound(names=Names("127.0.0.1", "127.0.0.2")) as out:
        target = f"http://example.com:{peer.port}/"
        await out.call(target)
        await out.client.warm(1, out.target(target).origin, 1)
        assert out.client.connections == 0


@in_loop
async def test_ipv6_is_called():
    async with serving(answering(OK), host="::1") as peer, outbound() as out:
        assert (await out.call(f"http://[::1]:{peer.port}/")).status == 200


@in_loop
async def test_closing_the_client_closes_every_connection_and_tells_nobody():
    async def script(visit):
        await visit.request()
        await visit.read()

    async with serving(script) as peer:
        async with outbound() as out:
            calls = [out.start(url(peer)) for _ in range(10)]
            await until_async(lambda: peer.visits == 10)
        await until_async(lambda: len(peer.ended) == 10)
        assert not any(call.done() for call in calls)


@in_loop
async def test_many_calls_leave_no_socket_and_no_pool(monkeypatch):
    monkeypatch.setattr("engine.outbound.connection.IDLE_MS_MAX", 10)
    monkeypatch.setattr("engine.outbound.pool.IDLE_MS_MAX", 10)
    answers = [OK, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b"garbage\r\n\r\n", b""]

    async def script(visit):
        await once(answers[visit.number % 4])(visit)

    async with serving(script) as peer, outbound() as out:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await asyncio.gather(*(out.start(url(peer), tenant_id=i) for i in range(50)))
        await until_async(lambda: out.client.connections == 0)
        assert not out.client._pools
        await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)


@in_loop
async def test_where_no_more_connections_can_be_opened_the_open_ones_serve_all():
    async with serving(answering(OK)) as peer, outbound() as out:
        await out.call(url(peer))
        peer.stop_listening()
        outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(20)))
        assert {outcome.status for outcome in outcomes} == {200}, outcomes
        assert peer.visits == 1


@contextlib.contextmanager
def swallowing_listener():
    """A listener whose queue is full: further connections are neither accepted nor refused."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@in_loop
async def test_a_peer_that_swallows_connections_costs_no_more_than_the_time_out():
    with swallowing_listener() as port:
        async with outbound() as out:
            outcome = await out.call(f"http://127.0.0.1:{port}/", timeout_ms=100)
            assert (outcome.kind, outcome.bytes_sent) == (OutcomeKind.TIMEOUT, False)


@in_loop
async def test_a_peer_that_swallows_connections_is_given_up_at_last(monkeypatch):
    monkeypatch.setattr("engine.outbound.opening.CONNECT_MS", 50)
    with swallowing_listener() as port:
        async with outbound() as out:
            outcome = await out.call(f"http://127.0.0.1:{port}/")
            assert (outcome.kind, outcome.reason) == (OutcomeKind.CONNECT_FAILED, "connect_timeout")
            assert out.client.connections == 0
            assert not out.client._pools


@in_loop
async def test_closing_while_connections_are_opened_leaves_no_socket():
    before = len(os.listdir("/proc/self/fd"))
    with swallowing_listener() as port:
        async with outbound() as out:
            calls = [out.start(f"http://127.0.0.1:{port}/") for _ in range(10)]
            warming = asyncio.ensure_future(out.client.warm(2, out.target(f"http://127.0.0.1:{port}/").origin, 10))
            await until_async(lambda: out.client.connections == OPENED_AT_FIRST["http"] + 1)
        await asyncio.wait([warming])
        assert out.client.connections == 0
        assert not any(call.done() for call in calls)
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("names", [Names(), Names("10.0.0.1"), Names("127.0.0.2")])
@in_loop
async def test_warming_what_cannot_be_called_leaves_nothing(names):
    async with outbound(names=names) as out:
        assert await out.client.warm(1, out.target("http://example.com:1/").origin, 5) is not None
        assert not out.client._pools


@in_loop
async def test_a_request_that_finds_only_stale_connections_can_be_aborted_and_closed_like_any_other():
    clock = SettableClock(1_000_000)
    async with serving(answering(OK)) as peer, outbound(clock=clock) as out:
        await out.call(url(peer))
        clock.advance(IDLE_MS_MAX + 1)
        call = out.start(url(peer))
        assert len(out.client._pools) == 1
        assert out.client.abort(call)
        await out.call(url(peer))


@in_loop
async def test_a_call_aborted_after_it_failed_and_before_that_was_told_is_not_told():
    async with serving(answering(OK)) as peer, outbound() as out:
        told = []
        request = out.request(url(peer))
        out.client.send(request, lambda *_: told.append(1), "token")
        out.client.fail(request, Failure(OutcomeKind.TIMEOUT, "timeout"))
        assert out.client.abort("token")
        await out.call(url(peer))
        assert not told


@in_loop
async def test_closed_connections_are_watched_no_more():
    gone = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(gone)) as peer, outbound() as out:
        for _ in range(50):
            await out.call(url(peer), timeout_ms=900_000)
        assert len(out.client.deadlines) == 0


@in_loop
async def test_a_burst_over_a_fast_connection_opens_no_more():
    async with serving(answering(OK)) as peer, outbound() as out:
        await out.call(url(peer))
        outcomes = await asyncio.gather(*(out.start(url(peer)) for _ in range(50)))
        assert {outcome.status for outcome in outcomes} == {200}
        assert peer.visits == 1


@in_loop
async def test_requests_that_wait_for_slow_answers_get_connections_of_their_own():
    answer_now = asyncio.Event()

    async def script(visit):
        await visit.request()
        await answer_now.wait()
        await visit.say(OK)

    async with serving(script) as peer, outbound() as out:
        calls = [out.start(url(peer)) for _ in range(50)]
        await until_async(lambda: peer.visits == 50)
        answer_now.set()
        assert {outcome.status for outcome in await asyncio.gather(*calls)} == {200}


@in_loop
async def test_p6_every_origin_is_warm_before_any_is_hot(monkeypatch):
    monkeypatch.setattr("engine.outbound.client.WARMING_AT_ONCE", 1)
    opened = []

    async def script(visit):
        opened.append(visit.writer.get_extra_info("sockname")[1])
        await visit.read()

    async with serving(script) as one, serving(script) as other, outbound() as out:
        origins = [out.target(url(peer)).origin for peer in (one, other)]
        assert await asyncio.gather(*(out.client.warm(1, origin, 5) for origin in origins)) == [None, None]
        await until_async(lambda: len(opened) == 10)
        assert set(opened[:2]) == {one.port, other.port}


@in_loop
async def test_warming_ends_with_the_second_it_is_for(monkeypatch):
    monkeypatch.setattr("engine.outbound.pool.WARMING_MS_MAX", 0)
    async with serving(answering(OK)) as peer, outbound() as out:
        assert await out.client.warm(1, out.target(url(peer)).origin, 5) is None
        assert out.client.connections == 0
