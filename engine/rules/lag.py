"""Percentiles of how late something was, from counts by the millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil


def percentile(counts: Mapping[int, int], percent: int) -> int:
    """By nearest rank: the smallest value that at least ``percent`` of all do not exceed; 0 if there are none."""
    rank = ceil(sum(counts.values()) * percent / 100)
    value = 0
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            break
    return value
