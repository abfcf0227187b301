"""The clock: never ahead of the wall clock, deaf to its steps, corrected by the shards."""

from __future__ import annotations

import time

import pytest

from engine.clock import OFFSET_MS_MAX, SLEW_MS_MAX, SystemClock, wall_ms


class SteppedWall:
    """A wall clock that is stepped by hand."""

    def __init__(self) -> None:
        self.step_ms = 0

    def __call__(self) -> int:
        return time.time_ns() + self.step_ms * 1_000_000

    def true_ms(self) -> int:
        return time.time_ns() // 1_000_000


def test_p4_the_clock_is_never_ahead_of_the_wall_clock() -> None:
    for _ in range(1_000):
        clock = SystemClock()
        assert clock.now_ms() <= wall_ms()


@pytest.mark.parametrize("step_ms", [90_000, -90_000, 500, -500])
def test_p8_a_step_of_the_wall_clock_moves_nothing(step_ms: int) -> None:
    wall = SteppedWall()
    clock = SystemClock(wall)
    wall.step_ms = step_ms
    assert abs(clock.now_ms() - wall.true_ms()) <= 5


@pytest.mark.parametrize("step_ms", [90_000, -90_000])
def test_p4_a_host_that_starts_with_a_wrong_clock_takes_the_shards_time(step_ms: int) -> None:
    wall = SteppedWall()
    wall.step_ms = step_ms
    clock = SystemClock(wall)
    assert abs(clock.follow(wall.true_ms()) + step_ms) <= 5
    assert abs(clock.now_ms() - wall.true_ms()) <= 5
    clock.follow(wall.true_ms())
    assert abs(clock.now_ms() - wall.true_ms()) <= 5


def test_a_small_difference_is_worked_off_bit_by_bit() -> None:
    wall = SteppedWall()
    clock = SystemClock(wall)
    wall.step_ms = OFFSET_MS_MAX // 4
    beats = 0
    while abs(clock.now_ms() - wall() // 1_000_000) > 5:
        before_ms = clock.now_ms() - wall.true_ms()
        clock.follow(wall() // 1_000_000)
        assert clock.now_ms() - wall.true_ms() - before_ms <= SLEW_MS_MAX + 5
        beats += 1
    assert beats == OFFSET_MS_MAX // 4 // SLEW_MS_MAX


def test_the_delay_of_a_slow_answer_is_not_taken_for_an_offset() -> None:
    clock = SystemClock()
    for _ in range(20):
        clock.follow(wall_ms() - 1_500)
    assert abs(clock.now_ms() - wall_ms()) <= 5


@pytest.mark.parametrize("wrong_ms", [90_000, -90_000])
@pytest.mark.parametrize("first", ["the wrong one", "a right one"])
def test_p4_one_shard_of_many_whose_clock_is_wrong_moves_nothing(wrong_ms: int, first: str) -> None:
    clock = SystemClock()
    if first == "the wrong one":
        clock.follow(wall_ms() + wrong_ms, 1)
    for _ in range(3):
        clock.follow(wall_ms(), 0)
        assert abs(clock.follow(wall_ms() + wrong_ms, 1) - wrong_ms) <= 5
        assert abs(clock.now_ms() - wall_ms()) <= 5


@pytest.mark.parametrize("step_ms", [90_000, -90_000])
def test_p4_a_host_whose_clock_stands_against_all_shards_takes_their_time(step_ms: int) -> None:
    wall = SteppedWall()
    wall.step_ms = step_ms
    clock = SystemClock(wall)
    for shard in range(3):
        clock.follow(wall.true_ms(), shard)
        assert abs(clock.now_ms() - wall.true_ms()) <= 5
