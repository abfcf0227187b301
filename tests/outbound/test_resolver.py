"""Names are asked once while their answer holds, however many wait for it."""

import asyncio

import pytest

from engine.outbound import resolver
from engine.outbound.resolver import NEGATIVE_MS, TTL_MS_MAX, TTL_MS_MIN, Answer, CachingResolver, DnsResolver
from tests.support.clock import SettableClock
from tests.support.peer import in_loop
from tests.support.wait import until_async


class Asked:
    """A resolver that counts, and answers when it is let."""

    def __init__(self, ttl_ms=10_000):
        self.hosts = []
        self.ttl_ms = ttl_ms
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def resolve(self, host):
        self.hosts.append(host)
        await self.may_answer.wait()
        return Answer((f"192.0.2.{len(self.hosts)}",), self.ttl_ms)


@pytest.mark.parametrize(
    ("ttl_ms", "holds_ms"), [(10_000, 10_000), (0, TTL_MS_MIN), (500, TTL_MS_MIN), (86_400_000, TTL_MS_MAX)]
)
@in_loop
async def test_an_answer_is_kept_as_long_as_it_says_within_bounds(ttl_ms, holds_ms):
    clock, asked = SettableClock(0), Asked(ttl_ms)
    caching = CachingResolver(asked, clock)
    first = await caching.resolve("a")
    clock.advance(holds_ms - 1)
    assert await caching.resolve("a") == first
    clock.advance(1)
    assert await caching.resolve("a") != first
    assert asked.hosts == ["a", "a"]


@in_loop
async def test_those_who_ask_at_the_same_time_are_answered_together():
    asked = Asked()
    asked.may_answer.clear()
    caching = CachingResolver(asked, SettableClock(0))
    asking = [asyncio.ensure_future(caching.resolve("a")) for _ in range(10)]
    await until_async(lambda: asked.hosts)
    asking[0].cancel()
    asked.may_answer.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert set(answers[1:]) == {Answer(("192.0.2.1",), 10_000)}
    assert asked.hosts == ["a"]


@in_loop
async def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(resolver, "NAMES_MAX", 2)
    asked = Asked()
    caching = CachingResolver(asked, SettableClock(0))
    for host in ("a", "b", "c", "c", "b", "a"):
        await caching.resolve(host)
    assert asked.hosts == ["a", "b", "c", "a"]


@in_loop
async def test_the_hosts_file_and_addresses_are_answered_without_a_name_server():
    dns = DnsResolver()
    assert "127.0.0.1" in (await dns.resolve("localhost")).addresses
    await dns.close()


@in_loop
async def test_a_name_that_is_not_there_has_no_address_and_a_reason():
    dns = DnsResolver()
    answer = await dns.resolve("no-such-name.invalid")
    assert (answer.addresses, answer.ttl_ms) == ((), NEGATIVE_MS)
    assert answer.problem
    await dns.close()


class NameServer(asyncio.DatagramProtocol):
    """Answers A queries with what it is told, and AAAA queries with nothing."""

    def __init__(self, addresses, ttl_s):
        self.asked = 0
        self._addresses = addresses
        self._ttl_s = ttl_s

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, query, peer):
        self.asked += 1
        question = query[12:].split(b"\0", 1)
        is_a = question[1][:2] == b"\0\1"
        answers = self._addresses if is_a else []
        head = query[:2] + b"\x81\x80\0\1" + len(answers).to_bytes(2, "big") + b"\0\0\0\0"
        body = question[0] + b"\0" + question[1][:4]
        for address in answers:
            body += b"\xc0\x0c\0\1\0\1" + self._ttl_s.to_bytes(4, "big") + b"\0\4" + bytes(map(int, address.split(".")))
        self._transport.sendto(head + body, peer)


@in_loop
async def test_addresses_and_their_time_to_live_come_from_the_name_server():
    loop = asyncio.get_running_loop()
    transport, _server = await loop.create_datagram_endpoint(
        lambda: NameServer(["192.0.2.1", "192.0.2.2"], 77), ("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]
    dns = DnsResolver([f"127.0.0.1:{port}"])
    answer = await dns.resolve("hooks.example.com")
    assert (sorted(answer.addresses), answer.ttl_ms) == (["192.0.2.1", "192.0.2.2"], 77_000)
    await dns.close()
    transport.close()


@in_loop
async def test_a_name_server_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(resolver, "LOOKUP_MS_MAX", 100)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
    dns = DnsResolver([f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"])
    assert (await dns.resolve("hooks.example.com")).addresses == ()
    await dns.close()
    transport.close()
