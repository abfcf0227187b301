"""The guard: which addresses may be dialled, judged at the moment of connecting on the very address dialled."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from engine.rules.target_text import DEFAULT_PORTS, Origin, Refusal, Target, is_address, read_target

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Guard:
    """Judges texts at PUT and addresses at the dial. ``own_listeners``: (address, port) that are never dialled."""

    def __init__(
        self,
        allowed_networks: Iterable[str] = (),
        allowed_ports: Iterable[int] = (),
        own_listeners: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._allowed_networks = [ipaddress.ip_network(network) for network in allowed_networks]
        self._allowed_ports = frozenset(allowed_ports)
        self._own_listeners = frozenset(own_listeners)

    def judge_url(self, url: str) -> Target | Refusal:
        """What can be said of a URL without resolving its name: for PUT."""
        target = read_target(url)
        if isinstance(target, Refusal):
            return target
        if is_address(target.origin.host):
            return self.judge_address(target.origin, target.origin.host) or target
        return target

    def judge_address(self, origin: Origin, address: str) -> Refusal | None:
        """Whether this address may be dialled for this origin: the last word, spoken directly before connecting."""
        parsed = ipaddress.ip_address(address)
        if (address, origin.port) in self._own_listeners:
            return Refusal("target_refused", "one of our own listeners")
        if any(parsed in network for network in self._allowed_networks):
            return None
        if not parsed.is_global:
            return Refusal("target_refused", f"{address} is not a public address")
        if origin.port != DEFAULT_PORTS[origin.scheme] and origin.port not in self._allowed_ports:
            return Refusal("target_refused", f"port {origin.port} is not allowed for {origin.scheme}")
        return None
