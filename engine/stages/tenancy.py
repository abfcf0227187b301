"""Tenancy: what firing needs to know of a tenant (keys, whether it is disabled), asked for before it is needed."""

from __future__ import annotations

from collections.abc import Callable

from engine.events import Events
from engine.model import Definition
from engine.stages.fleet_listeners import FleetListeners
from engine.store.tenants import Tenant, Tenants

# While a tenant's secrets cannot be opened the operator is told this often.
TOLD_INTERVAL_MS = 60_000


class Tenancy:
    """Answers from memory; whoever is not known yet is asked for at once, in the background."""

    def __init__(self, tenants: Tenants, listeners: FleetListeners, events: Events) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._tenants = tenants
        self._listeners = listeners
        self._events = events
        self._told: dict[int, str] = {}
        self._told_at_ms = 0
        self._wanted: set[int] = set()

    def known(self, tenant_id: int) -> Tenant | None:
        """The tenant, or None while the first shard has not told us; ask again a moment later."""
        tenant = self._tenants.tenants.known(tenant_id)
        if tenant is None:
            self._wanted.add(tenant_id)
            self.wake()
        return tenant

    def is_told(self, tenant_id: int, definition: Definition) -> bool:
        return self._tenants.is_told(tenant_id, definition)

    async def run_once(self, now_ms: int) -> bool:
        """Learn of those wanted, else read again what is known.

        Nobody is known before the guard knows where the fleet listens: nothing is fired for who is unknown.
        """
        if not self._listeners.known or not self._wanted:
            await self._listeners.reread()
        if self._wanted:
            wanted, self._wanted = self._wanted, set()
            await self._tenants.tenants.load(sorted(wanted))
        else:
            await self._tenants.reread()
        self._tell_sealed(now_ms)
        return bool(self._wanted)

    def _tell_sealed(self, now_ms: int) -> None:
        sealed = self._tenants.sealed
        if sealed == self._told and now_ms - self._told_at_ms < TOLD_INTERVAL_MS:
            return
        self._told, self._told_at_ms = dict(sealed), now_ms
        for tenant_id, problem in sealed.items():
            self._events.emit("tenant.sealed", tenant_id=tenant_id, error=problem)
