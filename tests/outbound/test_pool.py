"""The connections of an origin: bounded, warmed, shared out to those that wait, none left behind."""

import asyncio
import contextlib
import os
import socket

import pytest

from engine.model import OutcomeKind
from engine.outbound.client import Limits
from engine.outbound.pool import OPENED_AT_FIRST
from tests.support.peer import OK, Names, answering, in_loop, once, outbound, serving, url
from tests.support.wait import until_async


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
