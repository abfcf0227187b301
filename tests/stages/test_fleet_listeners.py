"""What other hosts of the fleet listen on: learned over the first shard, and never called, from any host."""

from __future__ import annotations

import asyncio

import pytest

from engine.config import Contact, Dsn, Settings
from engine.listening import Listening, databases_of, machine_identity, own_addresses, told_to_others
from engine.model import HttpTarget, OutcomeKind, RunAt, partition_of
from engine.outbound.client import HttpClient
from engine.outbound.resolver import DnsResolver
from engine.outbound.target import Guard, is_local
from engine.rules.target_text import Origin
from engine.stages.fleet_listeners import FleetListeners
from engine.stages.tenancy import Tenancy
from engine.stages.versions import CallPlan, Versions
from engine.store.listeners import BELIEVED_MS, NOTED_MS, note_listeners
from engine.store.shard import Shard
from engine.store.tenants import Tenants, create_tenant
from tests.support.api import served
from tests.support.mysql import SchemaPool
from tests.support.peer import OK, Names, Outbound, answering, serving
from tests.support.wait import until
from tests.support.world import PARTITIONS, TENANT, World, run_world

ALLOWED = ["127.0.0.0/8", "::1/128", "192.0.2.0/24", "10.0.0.0/8"]
HERE, THERE = "this/boot/1", "that/boot/1"


class Host:
    """A process of a host: its guard, what it tells and learns, and its client."""

    def __init__(self, world: World, machine: str, *places: tuple[str, int], names: Names | None = None) -> None:
        self.guard = Guard(ALLOWED)
        self.listeners = FleetListeners(world.shard, self.guard, world.clock, places, machine)
        loop = asyncio.get_running_loop()
        self.client = HttpClient(loop, world.clock, self.guard, names or DnsResolver())
        self.out = Outbound(self.client, self.guard)

    def refuses(self, address: str, port: int) -> bool:
        return self.guard.judge_address(Origin("http", address, port), address) is not None


def test_p9_a_listener_of_another_host_is_not_connected_to(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        async with serving(answering(OK)) as peer:
            caller = Host(world, HERE, names=Names("127.0.0.1"))
            # What is 127.0.0.1 here stands for an address that both hosts reach.
            url = f"http://127.0.0.1:{peer.port}/"
            assert (await caller.out.call(url)).status == 200
            assert peer.visits == 1
            await Host(world, HERE, ("127.0.0.1", peer.port)).listeners.reread()
            await caller.listeners.reread()
            assert caller.client.connections == 0, "not even on a connection that was open before"
            # A URL that was read before, and a name.
            request_before = Outbound(caller.client, Guard(ALLOWED))
            for asked in (url, f"http://example.com:{peer.port}/", f"http://rebound.example.com:{peer.port}/"):
                outcome = await request_before.call(asked)
                assert outcome.kind is OutcomeKind.TARGET_REFUSED, asked
                assert "listeners" in outcome.detail
            assert peer.visits == 1
            # The other host is gone: what it has told is believed for a while, and then forgotten.
            world.clock.advance(NOTED_MS)
            await world.rows(f"UPDATE listeners SET seen_at = seen_at - {BELIEVED_MS - NOTED_MS}")
            await caller.listeners.reread()
            assert (await request_before.call(url)).kind is OutcomeKind.TARGET_REFUSED
            await world.rows(f"UPDATE listeners SET seen_at = seen_at - {NOTED_MS}")
            await caller.listeners.reread()
            assert (await caller.out.call(url)).status == 200
            assert peer.visits == 2
            await caller.client.close()

    run_world(shard_dsn, body)


def test_p9_a_call_under_way_is_the_last_on_its_connection(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        caller = Host(world, HERE)
        release = asyncio.Event()

        async def slow(visit: object) -> None:
            await visit.request()
            await release.wait()
            await visit.say(OK)
            await visit.request()

        async with serving(slow) as peer:
            call = caller.out.start(f"http://127.0.0.1:{peer.port}/")
            await asyncio.to_thread(until, lambda: peer.visits == 1)
            caller.guard.learn([("127.0.0.1", peer.port)])
            release.set()
            assert (await call).status == 200
            assert caller.client.connections == 0
        await caller.client.close()

    run_world(shard_dsn, body)


def test_p9_a_wildcard_stands_for_every_address_of_its_own_host(
    shard_dsn: Dsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"127.0.0.1", "::1", "fe80::1", "10.0.0.9", "fd00::9"}
    monkeypatch.setattr("engine.listening.own_addresses", lambda: addresses)

    async def body(world: World) -> None:
        await Host(world, THERE, ("0.0.0.0", 8080)).listeners.reread()
        far, near = Host(world, HERE), Host(world, THERE)
        for host in (far, near):
            await host.listeners.reread()
        assert far.refuses("10.0.0.9", 8080)
        assert ("fd00::9", 8080) in far.guard._own_listeners
        assert not far.refuses("10.0.0.9", 8081)
        assert not far.refuses("127.0.0.1", 8080), "its loopback is not ours"
        assert near.refuses("127.0.0.1", 8080)
        assert near.refuses("127.9.9.9", 8080)
        for host in (far, near):
            await host.client.close()

    run_world(shard_dsn, body)


def test_p9_databases_that_only_another_host_names_are_known_everywhere(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        settings = Settings(
            shards=(Dsn.parse("mysql://u@10.0.0.5:3307/a"), Dsn.parse("mysql://u@/a?unix_socket=/x")),
            keeper_shards=(Dsn.parse("mysql://u@10.0.0.6:3308/a"),),
            cassandra=Contact((("10.0.0.7", 9042), ("10.0.0.8", 9043)), "k"),
        )
        ours = [("10.0.0.5", 3307), ("10.0.0.6", 3308), ("10.0.0.7", 9042), ("10.0.0.8", 9043)]
        assert databases_of(settings) == ours
        await Host(world, THERE, *databases_of(settings)).listeners.reread()
        caller = Host(world, HERE)
        assert not any(caller.refuses(*place) for place in ours)
        await caller.listeners.reread()
        assert all(caller.refuses(*place) for place in ours)
        assert not caller.refuses("10.0.0.5", 3308)
        await caller.client.close()

    run_world(shard_dsn, body)


def test_p9_nobody_is_called_before_the_fleet_is_known(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        tenant = await create_tenant(world.shard, "first")
        await Host(world, THERE, ("10.0.0.5", 8080)).listeners.reread()
        caller = Host(world, HERE)
        tenancy = Tenancy(Tenants(world.shard, world.clock), caller.listeners, world.events)
        assert tenancy.known(tenant.tenant_id) is None
        await tenancy.run_once(world.now_ms)
        assert tenancy.known(tenant.tenant_id) is not None
        assert caller.refuses("10.0.0.5", 8080)
        await caller.client.close()

    run_world(shard_dsn, body)


def test_what_a_job_was_refused_for_is_over_when_the_listener_is(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        guard = Guard(ALLOWED)
        guard.learn([("10.0.0.5", 8080)])
        versions = Versions(guard)
        job_id = await world.job("a", RunAt(world.second(5)), target=HttpTarget("http://10.0.0.5:8080/"))
        key = (partition_of(TENANT, "a", PARTITIONS), job_id, 1)

        async def refused() -> bool:
            async with world.shard.connection() as connection:
                call = (await versions.load(connection, [key], 1 << 24))[key]
            assert isinstance(call, CallPlan)
            return call.refusal is not None

        assert await refused()
        guard.learn([])
        assert not await refused()

    run_world(shard_dsn, body)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "localhost", "no-such-host.invalid"])
def test_places_are_told_by_their_addresses(host: str) -> None:
    told = told_to_others([(host, 80)], HERE)
    assert told == sorted(set(told))
    for listening in told:
        assert listening.port == 80
        assert (listening.machine == HERE) == (listening.address.startswith(("127.", "::", "0.0.0.0", "fe80")))
    if host == "127.0.0.1":
        assert told == [Listening("127.0.0.1", 80, HERE)]
    assert bool(told) == (host != "no-such-host.invalid")


def test_this_machine_knows_its_own_addresses() -> None:
    own = own_addresses()
    assert "127.0.0.1" in own
    assert all(is_local(address) for address in own if not address.startswith("fe80"))
    assert machine_identity() == machine_identity()


def test_p9_the_api_tells_where_it_listens_and_refuses_it_at_put(schema_pool: SchemaPool) -> None:
    """Beside its own settings: another process of this machine has told of a port."""
    with schema_pool.schema() as first, served([first], allow_networks=("127.0.0.0/8",)) as server:
        told = server.first_rows("SELECT port, machine FROM listeners")
        assert (first.port, machine_identity()) in told or first.unix_socket is not None
        tenant = server.tenant()
        job = {
            "schedule": {"cron": "0 9 * * *"}, "target": {"http": {"url": "http://127.0.0.1:8123/"}},
        }  # fmt: skip
        assert tenant.put("a", job).status == 201
        asyncio.run(_tell_one(first, Listening("127.0.0.1", 8123, machine_identity())))
        until(lambda: tenant.put("b", job).status == 422)
        assert tenant.put("b", job).json["errors"][0]["pointer"] == "/target/http/url"


async def _tell_one(dsn: Dsn, listening: Listening) -> None:
    shard = Shard(dsn, 0)
    await note_listeners(shard, [listening])
    await shard.close()
