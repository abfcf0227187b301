"""Which waiting runs are claimed first where there is not room for all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.model import Priority
from engine.rules.claiming import chosen


def waiting(**counts: int) -> dict[int, list[tuple[str, int]]]:
    return {Priority[name.upper()]: [(name, n) for n in range(count)] for name, count in counts.items()}


def by_name(taken: list[tuple[str, int]]) -> dict[str, int]:
    return dict(Counter(name for name, _ in taken))


def test_p5_every_priority_has_its_share_and_what_one_leaves_goes_to_the_highest() -> None:
    full = waiting(critical=1_000, high=1_000, normal=1_000, low=1_000)
    assert by_name(chosen(full, {}, 150)) == {"critical": 80, "high": 40, "normal": 20, "low": 10}
    assert by_name(chosen(waiting(critical=10, normal=1_000, low=1_000), {}, 150)) == {
        "critical": 10,
        "normal": 130,
        "low": 10,
    }


def test_p5_of_a_backlog_that_is_late_those_on_time_have_half_of_the_room_or_what_they_need() -> None:
    late = {Priority.CRITICAL: [("late", n) for n in range(1_000)]}
    assert by_name(chosen(waiting(low=1_000), late, 100)) == {"low": 50, "late": 50}
    assert by_name(chosen(waiting(low=20), late, 100)) == {"low": 20, "late": 80}
    assert by_name(chosen({}, late, 100)) == {"late": 100}


counts = st.fixed_dictionaries({name: st.integers(0, 40) for name in ("critical", "high", "normal", "low")})


@given(counts, counts, st.integers(0, 200))
def test_the_room_is_filled_and_each_class_gives_its_first(on_time: dict[str, int], late: dict[str, int], room: int):
    taken = chosen(waiting(**on_time), {p: [("late-" + n, i) for n, i in c] for p, c in waiting(**late).items()}, room)
    total = sum(on_time.values()) + sum(late.values())
    assert len(taken) == len(set(taken)) == min(room, total)
    for name, count in by_name(taken).items():
        assert {n for of, n in taken if of == name} == set(range(count))
