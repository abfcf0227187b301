"""A connection that serves again: until it is too old, and never a request that its peer may have read already."""

import asyncio
import socket
import struct

import pytest

from engine.model import OutcomeKind
from engine.outbound.connection import AGE_MS_MAX, IDLE_MS_MAX, Connection
from tests.support.clock import SettableClock
from tests.support.peer import OK, answering, in_loop, outbound, serving, url
from tests.support.wait import until_async


@in_loop
async def test_calls_one_after_the_other_share_a_connection():
    async with serving(answering(OK)) as peer, outbound() as out:
        for _ in range(5):
            outcome = await out.call(url(peer))
            assert (outcome.kind, outcome.status, outcome.body, outcome.bytes_sent) == (
                OutcomeKind.ANSWERED, 200, b"ok", True,
            )  # fmt: skip
        assert peer.visits == 1


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
