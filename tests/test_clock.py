"""The machine's clock as we read it: never ahead of the wall clock, and corrected within bounds."""

from engine.clock import SLEW_MS_MAX, SystemClock, wall_ms


def ahead_ms(clock: SystemClock) -> tuple[int, int]:
    """The least and the most by which it may be ahead of the wall clock, however long the asking took."""
    before_ms, now_ms, after_ms = wall_ms(), clock.now_ms(), wall_ms()
    return now_ms - after_ms, now_ms - before_ms


def test_p4_the_clock_is_never_ahead_of_the_wall_clock_not_even_by_rounding():
    assert max(ahead_ms(SystemClock())[0] for _ in range(20_000)) <= 0


def test_a_correction_moves_it_by_that_much_and_by_no_more_than_the_bound():
    for offset_ms, moved_ms in ((-10, -10), (10, 10), (5_000, SLEW_MS_MAX), (-5_000, -SLEW_MS_MAX)):
        clock = SystemClock()
        clock.slew(offset_ms)
        least, most = ahead_ms(clock)
        assert least <= moved_ms
        assert most >= moved_ms - 1
