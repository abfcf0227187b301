"""Lanes: who claims a run that waits in ``deferred``: the executors of its partition, or the workers of its function.

What a worker has in its hands stands in a lane that nobody claims from, and what an executor has in another: whoever
looks for silent holders reads those, and not everything that waits. What is sealed with a key that its owner lacks
stands in a lane of its own too, so that it takes no room from what can run. A lane is one number, so that one index
serves them all. Two functions whose lanes met by chance would only see each other's rows among their candidates:
whoever claims compares tenant and name.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from engine.model import Definition, FunctionTarget, Overlap

# Partitions lie below it.
HELD_LANES_FROM = 1 << 16
SEALED_LANES_FROM = 1 << 17
TAKEN_LANES_FROM = 1 << 18
WORKERS_LANES_FROM = 1 << 62

_HASH_BYTES = 8


def lane_of(partition_id: int, tenant_id: int, definition: Definition) -> int:
    """Where a run of this definition waits. One that must not overlap goes through the executors, which let it in."""
    if definition.overlap != Overlap.ALLOW:
        return partition_id
    return offered_lane(partition_id, tenant_id, definition)


def offered_lane(partition_id: int, tenant_id: int, definition: Definition) -> int:
    """Where it waits once it may run."""
    if not isinstance(definition.target, FunctionTarget):
        return partition_id
    return workers_lane(tenant_id, definition.target.name)


def held_lane(partition_id: int) -> int:
    """Where a run stands while a worker has it."""
    return HELD_LANES_FROM + partition_id


def taken_lane(partition_id: int) -> int:
    """Where a run stands while an executor has it."""
    return TAKEN_LANES_FROM + partition_id


def sealed_lane(partition_id: int) -> int:
    """Where a run stands whose secrets could not be opened: whoever has the key takes it from there."""
    return SEALED_LANES_FROM + partition_id


@lru_cache(10_000)
def workers_lane(tenant_id: int, function: str) -> int:
    """The lane of a function."""
    digest = blake2b(f"{tenant_id}:{function}".encode(), digest_size=_HASH_BYTES).digest()
    return WORKERS_LANES_FROM + int.from_bytes(digest, "big") % WORKERS_LANES_FROM
