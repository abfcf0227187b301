"""Deadlines: looked at in time, one entry for each watched however often its deadline moves."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import SystemClock
from engine.outbound.deadlines import NEVER_MS, Deadlines
from tests.support.clock import SettableClock
from tests.support.peer import in_loop
from tests.support.wait import until_async


class Timed:
    """Something whose deadline the test moves; ``looks`` are the times at which it was over."""

    def __init__(self, deadlines):
        self.watch, self.watched_ms = 0, NEVER_MS
        self.deadline_ms = NEVER_MS
        self.ends = []
        self._deadlines = deadlines

    def set(self, deadline_ms):
        self.deadline_ms = deadline_ms
        if deadline_ms < self.watched_ms:
            self._deadlines.watch(self, deadline_ms)

    def look(self, now_ms):
        if self.deadline_ms > now_ms:
            return self.deadline_ms
        self.ends.append(now_ms)
        self.deadline_ms = NEVER_MS
        return NEVER_MS


class HandLoop:
    """An event loop whose one timer is run by hand."""

    def call_later(self, _, run):
        self.run = run
        return self

    def cancel(self):
        self.run = None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50), st.integers(0, 20)), max_size=60))
def test_each_deadline_ends_in_the_first_look_after_it(steps):
    clock, loop = SettableClock(0), HandLoop()
    deadlines = Deadlines(loop, clock)
    watched = [Timed(deadlines) for _ in range(5)]
    expected = [[] for _ in watched]
    for index, in_ms, advance_ms in steps:
        watched[index].set(clock.now_ms() + in_ms)
        clock.advance(advance_ms)
        due = [i for i, timed in enumerate(watched) if timed.deadline_ms <= clock.now_ms()]
        for i in due:
            expected[i].append(clock.now_ms())
        if deadlines.next_ms <= clock.now_ms():
            loop.run()
    assert [timed.ends for timed in watched] == expected


def test_a_deadline_that_moves_a_thousand_times_has_one_entry():
    clock = SettableClock(0)
    deadlines = Deadlines(HandLoop(), clock)
    timed = Timed(deadlines)
    for _ in range(1000):
        timed.set(clock.now_ms() + 30_000)
        clock.advance(1)
    assert len(deadlines) == 1


@in_loop
async def test_the_event_loops_timer_serves_them():
    clock = SystemClock()
    deadlines = Deadlines(asyncio.get_running_loop(), clock)
    late, soon = Timed(deadlines), Timed(deadlines)
    late.set(clock.now_ms() + 60_000)
    soon.set(clock.now_ms() + 20)
    begins_ms = clock.now_ms()
    await until_async(lambda: soon.ends)
    assert begins_ms + 20 <= soon.ends[0]
    assert not late.ends
    deadlines.close()


def test_it_is_known_how_late_the_last_look_was():
    clock, loop = SettableClock(0), HandLoop()
    deadlines = Deadlines(loop, clock)
    timed = Timed(deadlines)
    for late_ms in (30, 0):
        timed.set(clock.now_ms() + 10)
        clock.advance(10 + late_ms)
        loop.run()
        assert deadlines.late_ms == late_ms
