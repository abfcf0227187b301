"""A call in the client: told once, never while sending, not at all once it was aborted or the client closed."""

import asyncio

import pytest

from engine.model import OutcomeKind
from engine.outbound.client import Limits
from engine.outbound.connection import IDLE_MS_MAX
from engine.outbound.exchange import Failure
from tests.support.clock import SettableClock
from tests.support.peer import OK, answering, in_loop, outbound, serving, url
from tests.support.wait import until_async


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
