"""The guard: which targets may be called. Text is judged at PUT, an address at the moment it is dialled.

Nothing but the judgement at the dial protects: a name may resolve to one address at PUT and to another at its second.
What is judged is therefore the very address that is dialled, by every call-out (engine/outbound/opening.py).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache

from engine.config import Settings
from engine.listening import EVERY_ADDRESS, addresses_of, places_of
from engine.rules.target_text import DEFAULT_PORTS, Origin, Refusal, Target, is_address, read_target

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _table(*entries: str) -> tuple[tuple[Network, str], ...]:
    return tuple(
        (ipaddress.ip_network(network), use) for network, _, use in (entry.partition(" ") for entry in entries)
    )


# https://www.iana.org/assignments/iana-ipv4-special-registry, whole, those that are reachable included (nobody's web
# service lives there), and everything that is not unicast. A table of our own: Python's is_global answers another
# question and lets multicast, 6to4 and mapped addresses through.
SPECIAL_IPV4 = _table(
    "0.0.0.0/8 this network",
    "10.0.0.0/8 private use",
    "100.64.0.0/10 shared address space",
    "127.0.0.0/8 loopback",
    "169.254.0.0/16 link local",
    "172.16.0.0/12 private use",
    "192.0.0.0/24 IETF protocol assignments",
    "192.0.2.0/24 documentation",
    "192.31.196.0/24 AS112",
    "192.52.193.0/24 AMT",
    "192.88.99.0/24 6to4 relay anycast",
    "192.168.0.0/16 private use",
    "192.175.48.0/24 AS112",
    "198.18.0.0/15 benchmarking",
    "198.51.100.0/24 documentation",
    "203.0.113.0/24 documentation",
    "224.0.0.0/4 multicast",
    "240.0.0.0/4 reserved, and limited broadcast",
)
# Global unicast is 2000::/3 (https://www.iana.org/assignments/ipv6-address-space); loopback, mapped, translated, unique
# local, link and site local and multicast addresses all lie outside of it.
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# https://www.iana.org/assignments/iana-ipv6-special-registry, as far as it lies inside.
SPECIAL_IPV6 = _table(
    "2001::/23 IETF protocol assignments: Teredo, benchmarking, ORCHID",
    "2001:db8::/32 documentation",
    "2002::/16 6to4",
    "2620:4f:8000::/48 AS112",
    "3fff::/20 documentation",
)


def is_local(address: str) -> bool:
    """Whether an address is one of this machine's: only such an address can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def guard_of(settings: Settings) -> Guard:
    """The guard that an operator has set: what is allowed, and what is this service's own as far as these settings say;
    the rest of the fleet is learned (engine/stages/fleet_listeners.py)."""
    resolved = [(address, port) for host, port in places_of(settings) for address in addresses_of(host)]
    return Guard(settings.allow_networks, settings.allow_ports, resolved)


# Some 200 bytes each.
ORIGINS_KEPT = 65_536


class Guard:
    """What the operator allows. A network is allowed on every port; a port is opened for public addresses.

    ``own_listeners``: (address, port) of this service's listeners and databases, refused even inside an allowed
    network; the address may be 0.0.0.0 or ::, which stands for every address of this machine.
    """

    def __init__(
        self,
        allowed_networks: Iterable[str] = (),
        allowed_ports: Iterable[int] = (),
        own_listeners: Iterable[tuple[str, int]] = (),
        is_local: Callable[[str], bool] = is_local,
    ) -> None:
        self._allowed_networks = tuple(ipaddress.ip_network(network) for network in allowed_networks)
        self._allowed_ports = frozenset(allowed_ports)
        self._given = frozenset(_canonical(own_listeners))
        self._own_listeners: Set[tuple[str, int]] = self._given
        self._own_ports = {port for _, port in self._own_listeners}
        self.generation = 0
        """Grows whenever a URL may be judged differently than before."""
        self.on_learned: set[Callable[[], None]] = set()
        self._is_local = is_local
        # Jobs share their origins; the address is judged again, and for good, when it is dialled.
        self._judged = lru_cache(maxsize=ORIGINS_KEPT)(self._judge_origin)
        self.is_operators = lru_cache(maxsize=ORIGINS_KEPT)(self._is_operators)
        """Whether an origin is an address in a network that the operator allows, free of the limits on public ones."""

    def learn(self, listeners: Iterable[tuple[str, int]]) -> None:
        """What the rest of the fleet listens on now, beside what was given at the start."""
        known = self._given | set(_canonical(listeners))
        if known == self._own_listeners:
            return
        self._own_listeners = known
        self._own_ports = {port for _, port in known}
        self.generation += 1
        self._judged.cache_clear()
        for tell in self.on_learned:
            tell()

    def judge_url(self, url: str) -> Target | Refusal:
        """What can be said of a URL without resolving its name: for PUT. Not the last word, see judge_address."""
        target = read_target(url)
        if isinstance(target, Refusal):
            return target
        return self._judged(target.origin) or target

    def _judge_origin(self, origin: Origin) -> Refusal | None:
        if is_address(origin.host):
            return self.judge_address(origin, origin.host)
        # A name may yet turn out to lie in an allowed network, where every port is open.
        return None if self._allowed_networks else self._refused_port(origin)

    def judge_address(self, origin: Origin, address: str) -> Refusal | None:
        """Whether this address may be dialled for this origin: the last word, asked directly before connecting."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return _refused(f"{address!r} is not an address")
        return self._refused_always(parsed, origin.port) or (
            None if self._is_allowed(parsed) else _refused_special(parsed) or self._refused_port(origin)
        )

    def _is_operators(self, origin: Origin) -> bool:
        return is_address(origin.host) and self._is_allowed(ipaddress.ip_address(origin.host))

    def _refused_always(self, address: Address, port: int) -> Refusal | None:
        if address.is_unspecified or address.is_multicast:
            return _refused(f"{address} is no host's address")
        if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
            return _refused(f"{address} is an IPv4 address in another form, or holds on one link only")
        if port in self._own_ports and self._is_own(str(address), port):
            return _refused(f"{address} port {port} is one of our own listeners")
        return None

    def _is_own(self, address: str, port: int) -> bool:
        if (address, port) in self._own_listeners:
            return True
        everywhere = any((any_address, port) in self._own_listeners for any_address in EVERY_ADDRESS)
        return everywhere and self._is_local(address)

    def _is_allowed(self, address: Address) -> bool:
        return any(address in network for network in self._allowed_networks)

    def _refused_port(self, origin: Origin) -> Refusal | None:
        if origin.port == DEFAULT_PORTS[origin.scheme] or origin.port in self._allowed_ports:
            return None
        return Refusal("port_refused", f"port {origin.port} is not allowed for {origin.scheme}")


def _canonical(listeners: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """One spelling of each address; a link-local one without its interface is nobody's."""
    for address, port in listeners:
        yield str(ipaddress.ip_address(address.partition("%")[0])), port


def _refused_special(address: Address) -> Refusal | None:
    table = SPECIAL_IPV4 if isinstance(address, ipaddress.IPv4Address) else SPECIAL_IPV6
    for network, use in table:
        if address in network:
            return _refused(f"{address} lies in {network}: {use}")
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_IPV6:
        return _refused(f"{address} is not a global unicast address")
    return None


def _refused(detail: str) -> Refusal:
    return Refusal("address_refused", detail)
