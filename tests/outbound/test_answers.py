"""Answers of servers that misbehave in every way: each ends in the right outcome, and closes what it must."""

import asyncio

import pytest

from engine.model import OutcomeKind
from engine.outbound.answer import BODY_BYTES_MAX, HEAD_BYTES_MAX
from tests.support.peer import OK, answering, in_loop, once, outbound, serving, url
from tests.support.wait import until_async

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
