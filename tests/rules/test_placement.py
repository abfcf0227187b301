"""Shares of partitions: all of them, evenly, whatever the number of workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.rules.placement import fair_share, shard_of, surplus


@given(st.integers(0, 1_024), st.integers(1, 50))
def test_shares_add_up_to_every_partition_and_differ_by_one_at_most(partitions: int, workers: int) -> None:
    shares = [fair_share(partitions, workers, rank) for rank in range(workers)]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1


@given(st.lists(st.integers(0, 1_023), unique=True), st.integers(0, 50))
def test_what_is_given_away_leaves_the_share(mine: list[int], share: int) -> None:
    assert len(mine) - len(surplus(mine, share)) == min(len(mine), share)


@given(st.integers(0, 1_023), st.integers(1, 64))
def test_every_partition_has_a_shard(partition_id: int, shards: int) -> None:
    assert 0 <= shard_of(partition_id, shards) < shards
