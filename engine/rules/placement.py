"""How partitions are shared out over workers, and over shards when a fleet is created."""

from __future__ import annotations

from collections.abc import Sequence


def shard_of(partition_id: int, shard_count: int) -> int:
    """Placement at creation: round robin."""
    return partition_id % shard_count


def fair_share(partition_count: int, worker_count: int, rank: int) -> int:
    """Partitions due to the worker of this rank (0-based, by worker id); the first ones carry the remainder."""
    if worker_count == 0:
        return 0
    share, rest = divmod(partition_count, worker_count)
    return share + (1 if rank < rest else 0)


def surplus(mine: Sequence[int], share: int) -> Sequence[int]:
    """The partitions to give away: the last ones beyond the share."""
    return sorted(mine)[share:]
