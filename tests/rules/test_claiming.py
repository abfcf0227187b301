"""Which waiting runs are claimed first where there is not room for all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import Priority
from engine.rules.claiming import DueClass, chosen, due_classes
from engine.rules.ready import LATE_MS


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


@settings(deadline=None)
@given(counts, counts, st.integers(0, 200))
def test_the_room_is_filled_and_each_class_gives_its_first(on_time: dict[str, int], late: dict[str, int], room: int):
    taken = chosen(waiting(**on_time), {p: [("late-" + n, i) for n, i in c] for p, c in waiting(**late).items()}, room)
    total = sum(on_time.values()) + sum(late.values())
    assert len(taken) == len(set(taken)) == min(room, total)
    for name, count in by_name(taken).items():
        assert {n for of, n in taken if of == name} == set(range(count))


NOW_MS, UNTIL_MS = 1_000_000, 1_030_000
LATE_AT_MS = NOW_MS - LATE_MS


def test_p5_jobs_of_one_priority_on_time_are_one_class_that_has_the_whole_batch() -> None:
    classes = due_classes({Priority.NORMAL: NOW_MS}, NOW_MS, UNTIL_MS, 1_000)
    assert classes == [DueClass(Priority.NORMAL, LATE_AT_MS, UNTIL_MS, 1_000)]


def test_p5_where_some_are_late_those_on_time_come_first_and_have_half_of_the_batch() -> None:
    classes = due_classes({Priority.LOW: LATE_AT_MS, Priority.CRITICAL: NOW_MS}, NOW_MS, UNTIL_MS, 900)
    assert classes == [
        DueClass(Priority.CRITICAL, LATE_AT_MS, UNTIL_MS, 400),
        DueClass(Priority.LOW, LATE_AT_MS, UNTIL_MS, 50),
        DueClass(Priority.LOW, -1, LATE_AT_MS, 450),
    ]


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(list(Priority)), st.integers(0, UNTIL_MS)),
    st.integers(0, UNTIL_MS),
    st.integers(100, 2_000),
)
def test_every_due_time_is_in_one_class_and_the_shares_fit_the_batch(
    first_ms: dict[int, int], until_ms: int, rows: int
) -> None:
    classes = due_classes(first_ms, NOW_MS, until_ms, rows)
    assert sum(each.rows for each in classes) <= rows
    for priority, at_ms in first_ms.items():
        within = [each for each in classes if each.priority == priority and each.after_ms < at_ms <= each.until_ms]
        assert len(within) == (at_ms <= until_ms)
