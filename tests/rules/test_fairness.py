"""Turns between the tenants of a class, where a batch cannot hold all that is due."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.rules.fairness import FRUITLESS_PAUSE_MS, LOOK_PART, LOUD_PART, Turns, by_turns, loud_of

ROWS = 64
BATCH_MS = 50


class Due(NamedTuple):
    """One due job; sorted as the index is: by place, then by tenant."""

    place: int
    tenant: int
    number: int


def tenant_of(due: Due) -> int:
    return due.tenant


class Shard:
    """What is due, read as the stages read it: in order of the index, or behind the loud ones."""

    def __init__(self, jobs: dict[int, int]) -> None:
        self.left = sorted(Due(n % 4, tenant, n) for tenant, count in jobs.items() for n in range(count))
        self.turns: Turns[Due] = Turns(tenant_of)
        self.now_ms = 0
        self.looks = 0

    def batch(self) -> list[Due]:
        if self.turns.looks(self.now_ms):
            self.looks += 1
            others = [due for due in self.left if due.tenant not in self.turns.loud]
            self.turns.found(by_turns(others, tenant_of)[:ROWS], 1, self.now_ms)
        there = set(self.left)
        first = [due for due in self.turns.take(self.turns.share(ROWS)) if due in there]
        rest = self.left[: ROWS - len(first)]
        self.turns.read([due.tenant for due in rest], ROWS - len(first))
        taken = list(dict.fromkeys(first + rest))
        gone = set(taken)
        self.left = [due for due in self.left if due not in gone]
        self.now_ms += BATCH_MS
        return taken


def test_p6_a_tenant_alone_has_every_batch_and_is_looked_past_at_its_pace_only() -> None:
    shard = Shard({7: ROWS * 40})
    batches = [shard.batch() for _ in range(40)]
    assert [len(batch) for batch in batches] == [ROWS] * 40
    assert shard.looks <= 40 * BATCH_MS // FRUITLESS_PAUSE_MS


def test_p6_where_there_is_room_for_all_nobody_is_loud_and_nothing_is_looked_for() -> None:
    shard = Shard({7: ROWS - 10, 8: 9})
    assert len(shard.batch()) == ROWS - 1
    assert not shard.turns.looks(1 << 60)


def test_p6_the_few_of_a_quiet_tenant_come_in_the_second_batch() -> None:
    shard = Shard({7: 5_000, 8: 10})
    taken = shard.batch() + shard.batch()
    assert Counter(map(tenant_of, taken))[8] == 10


def test_p6_two_that_are_loud_have_about_the_same() -> None:
    shard = Shard({7: 5_000, 8: 5_000})
    taken = Counter(tenant_of(due) for _ in range(40) for due in shard.batch())
    assert taken[7] + taken[8] > ROWS * 40 * 0.95
    assert taken[8] >= taken[7] * 0.5


tenants = st.dictionaries(st.integers(1, 30), st.integers(1, 700), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(tenants)
def test_p6_nobody_starves_and_nothing_comes_twice_or_not_at_all(jobs: dict[int, int]) -> None:
    shard = Shard(jobs)
    taken: list[Due] = []
    small = {tenant for tenant, count in jobs.items() if count <= ROWS // LOUD_PART}
    while shard.left:
        batch = shard.batch()
        assert batch
        taken += batch
        # Each of the loud ones can be ahead of the small ones once, and a look without success can have gone before.
        if len(taken) > ROWS * (2 * len(jobs) + FRUITLESS_PAUSE_MS // BATCH_MS + 1):
            assert not small & {due.tenant for due in shard.left}
    assert len(taken) == len(set(taken)) == sum(jobs.values())


@given(st.lists(st.integers(1, 5)), st.integers(1, 100))
def test_the_loud_are_few_and_hold_much(held_by: list[int], rows: int) -> None:
    loud = loud_of(held_by[:rows], rows)
    assert len(loud) <= LOUD_PART
    assert all(held_by[:rows].count(tenant) * LOUD_PART >= rows for tenant in loud)


@given(st.lists(st.integers(1, 5)))
def test_by_turns_everybody_is_as_far_as_everybody_else(held_by: list[int]) -> None:
    items = list(enumerate(held_by))
    ordered = by_turns(items, lambda item: item[1])
    assert sorted(ordered) == items
    for end in range(len(ordered)):
        had = Counter(tenant for _, tenant in ordered[:end])
        for tenant, count in Counter(held_by).items():
            assert had[tenant] >= min(count, max(had.values(), default=0) - 1)


def test_a_look_takes_a_bounded_part_of_the_time() -> None:
    turns: Turns[Due] = Turns(tenant_of)
    turns.read([7] * ROWS, ROWS)
    turns.found([Due(0, 8, 1)], took_ms=100, now_ms=1_000)
    turns.take(1)
    assert not turns.looks(1_000 + 100 * LOOK_PART - 1)
    assert turns.looks(1_000 + 100 * LOOK_PART)
