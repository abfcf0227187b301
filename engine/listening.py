"""Where this process listens and where its databases are, as the other hosts of the fleet have to know it."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.config import Settings

EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound to these, listeners given as such are recognised
EVERYWHERE = ""

_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


class Listening(NamedTuple):
    """An address and port of ours. ``machine`` names the only one on which the address means this, or is EVERYWHERE."""

    address: str
    port: int
    machine: str


def places_of(settings: Settings) -> list[tuple[str, int]]:
    """Host and port of all that these settings make listen, and of all databases that they name."""
    own = [(settings.listen, settings.port), ("127.0.0.1", settings.metrics_port)]
    own += [] if settings.admin_port is None else [(settings.admin_listen, settings.admin_port)]
    return own + databases_of(settings)


def databases_of(settings: Settings) -> list[tuple[str, int]]:
    """Host and port of all databases that are reached over TCP."""
    dsns = (*settings.shards, *settings.keeper_shards)
    own = [(dsn.host, dsn.port) for dsn in dsns if dsn.unix_socket is None]
    return own + list(settings.cassandra.points if settings.cassandra else ())


def told_to_others(places: Iterable[tuple[str, int]], machine: str) -> list[Listening]:
    """The addresses behind these places, for all hosts. A wildcard stands for every address of this machine, and for
    itself on the machine. Asks the name servers: not for an event loop."""
    told: set[Listening] = set()
    for host, port in places:
        for address in addresses_of(host):
            everywhere = address in EVERY_ADDRESS
            told.add(_told(address, port, machine))
            told |= {_told(own, port, machine) for own in (own_addresses() if everywhere else ())}
    return sorted(told)


def addresses_of(host: str) -> set[str]:
    """The addresses of a host of ours; none where it is not known, for then nothing reaches it by that name."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()


def own_addresses() -> set[str]:
    """Every address of this machine's interfaces, as the kernel has them."""
    return {*_own_ipv4(), *_own_ipv6()}


def machine_identity() -> str:
    """Equal for two processes exactly if loopback is the same for both: host, boot and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()[:64]}/{boot}/{os.readlink('/proc/self/ns/net').strip('net:[]')}"


def _own_ipv4() -> Iterator[str]:
    yield from _LOCAL_IPV4.findall(_read("/proc/self/net/fib_trie"))


def _own_ipv6() -> Iterator[str]:
    for line in _read("/proc/self/net/if_inet6").splitlines():
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _told(address: str, port: int, machine: str) -> Listening:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    only_here = parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified
    return Listening(str(parsed), port, machine if only_here else EVERYWHERE)


def _read(file: str) -> str:
    """Empty where this kernel has no such protocol."""
    try:
        return Path(file).read_text()
    except OSError:
        return ""
