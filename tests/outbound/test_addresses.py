"""Which addresses are called: every one of a name, none that is forbidden, whatever the name resolves to."""

import socket

import pytest

from engine.model import OutcomeKind
from engine.outbound.target import Guard
from tests.support.peer import OK, Names, answering, in_loop, outbound, serving


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
