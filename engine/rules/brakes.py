"""Operators' brakes: what must not be called now, whoever wants it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from engine.rules.target_text import Origin


class BrakeKind(IntEnum):
    """What a brake stops: every call, a tenant's calls, calls of one origin."""

    ALL = 1
    TENANT = 2
    ORIGIN = 3


class InForce(NamedTuple):
    """The brakes that are pulled. What ``stops`` holds waits until they are released; what ``blocks`` ends is skipped,
    on record."""

    everything: bool = False
    tenants: frozenset[int] = frozenset()
    origins: frozenset[Origin] = frozenset()

    @property
    def any(self) -> bool:
        return self.everything or bool(self.tenants) or bool(self.origins)

    def stops(self, tenant_id: int) -> bool:
        """Whether no call of this tenant may start."""
        return self.everything or tenant_id in self.tenants

    def blocks(self, origin: Origin) -> bool:
        """Whether nobody may call this origin."""
        return origin in self.origins


RELEASED = InForce()
# Until it is known which are pulled, all of them are: a restored backup must not begin to call.
UNKNOWN = InForce(everything=True)
