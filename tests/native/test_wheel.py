"""The timing wheel beside its twin, and what the twin cannot show: references, handles and memory."""

import gc
import random
import sys
import weakref
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from engine._native.wheel import Wheel
from tests.support.wheel_twin import WheelTwin

NOW_MS = 1_800_000_000_000
YEAR_MS = 366 * 86_400_000
LATEST_MS = 2**63 - 1
LEVELS = 8

# Close by, around the edges where a level begins, within a year, and anywhere at all.
EDGES_MS = [256**level + shift for level in range(LEVELS) for shift in (-1, 0, 1)]
SPANS_MS = st.one_of(
    st.integers(0, 3), st.integers(0, 600), st.sampled_from(EDGES_MS), st.integers(0, YEAR_MS), st.integers(0, 2**62)
)


class Payload:
    """An object whose death a weak reference shows."""


class WheelBesideTwin(RuleBasedStateMachine):
    handles = Bundle("handles")

    @initialize(start_ms=st.one_of(st.just(NOW_MS), st.sampled_from(EDGES_MS), st.integers(0, 2**62)))
    def start(self, start_ms: int) -> None:
        self.wheel: Wheel[int] = Wheel(start_ms)
        self.twin = WheelTwin(start_ms)
        self.items = 0

    def time_at(self, span_ms: int, back: bool) -> int:
        now_ms = self.twin.now_ms
        return max(0, now_ms - span_ms) if back else min(LATEST_MS, now_ms + span_ms)

    @rule(target=handles, span_ms=SPANS_MS, back=st.booleans())
    def add(self, span_ms: int, back: bool) -> tuple[int, int]:
        due_ms = self.time_at(span_ms, back)
        self.items += 1
        return self.wheel.add(due_ms, self.items), self.twin.add(due_ms, self.items)

    @rule(target=handles, spans_ms=st.lists(SPANS_MS, max_size=40), as_array=st.booleans())
    def add_many(self, spans_ms: list[int], as_array: bool) -> object:
        dues_ms = [self.time_at(span_ms, back=False) for span_ms in spans_ms]
        items = list(range(self.items, self.items + len(dues_ms)))
        self.items += len(dues_ms)
        handles = self.wheel.add_many(array("q", dues_ms) if as_array else dues_ms, items)
        numbers = [self.twin.add(due_ms, item) for due_ms, item in zip(dues_ms, items, strict=True)]
        return multiple(*zip(handles, numbers, strict=True))

    @rule(pair=handles)
    def cancel(self, pair: tuple[int, int]) -> None:
        handle, number = pair
        assert self.wheel.cancel(handle) == self.twin.cancel(number)

    @rule(span_ms=SPANS_MS, back=st.booleans())
    def advance(self, span_ms: int, back: bool) -> None:
        now_ms = self.time_at(span_ms, back)
        assert self.wheel.advance(now_ms) == self.twin.advance(now_ms)

    @rule()
    def sleep_until_the_next_item(self) -> None:
        earliest_ms = self.twin.earliest_ms()
        for _ in range(LEVELS):
            next_due_ms = self.wheel.next_due_ms()
            assert next_due_ms <= earliest_ms
            if next_due_ms == earliest_ms:
                break
            assert self.wheel.advance(next_due_ms) == self.twin.advance(next_due_ms) == []
        assert self.wheel.advance(earliest_ms) == self.twin.advance(earliest_ms)

    @rule()
    def clear(self) -> None:
        assert sorted(self.wheel.clear()) == sorted(self.twin.clear())

    @invariant()
    def agree(self) -> None:
        self.wheel.check_invariants()
        assert len(self.wheel) == len(self.twin)
        assert self.wheel.now_ms == self.twin.now_ms


TestWheelBesideTwin = WheelBesideTwin.TestCase
TestWheelBesideTwin.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_p4_nothing_is_given_out_before_its_millisecond_and_nothing_after_it() -> None:
    choose = random.Random(4)
    dues_ms = [NOW_MS + choose.randrange(1, 70_000) for _ in range(20_000)]
    wheel: Wheel[int] = Wheel(NOW_MS)
    wheel.add_many(dues_ms, dues_ms)
    for now_ms in range(NOW_MS, NOW_MS + 70_000):
        assert set(wheel.advance(now_ms)) <= {now_ms}
    assert len(wheel) == 0


def test_a_wheel_as_large_as_a_peak_grows_and_is_used_again() -> None:
    count = 50_000
    wheel: Wheel[int] = Wheel(NOW_MS)
    for _ in range(3):
        wheel.add_many([wheel.now_ms + 1000] * count, list(range(count)))
        assert wheel.advance(wheel.now_ms + 1000) == list(range(count))
        wheel.check_invariants()


def test_a_stale_handle_cancels_nothing() -> None:
    wheel: Wheel[str] = Wheel(NOW_MS)
    stale = [wheel.add(NOW_MS + 5, "cancelled"), wheel.add(NOW_MS + 5, "given out"), wheel.add(NOW_MS + 9, "cleared")]
    assert wheel.cancel(stale[0]) == "cancelled"
    assert wheel.advance(NOW_MS + 5) == ["given out"]
    assert wheel.clear() == ["cleared"]
    fresh = wheel.add_many([NOW_MS + 20] * 3, ["a", "b", "c"])
    assert [wheel.cancel(handle) for handle in stale] == [None] * 3
    assert [wheel.cancel(handle) for handle in fresh] == ["a", "b", "c"]


@pytest.mark.parametrize("handle", [0, 1, -1, 2048, 2**31, 2**62, -(2**63), 2**63 - 1])
def test_a_number_that_was_never_a_handle_cancels_nothing(handle: int) -> None:
    wheel: Wheel[str] = Wheel(NOW_MS)
    wheel.add(NOW_MS, "stays")
    assert wheel.cancel(handle) is None
    assert wheel.advance(NOW_MS) == ["stays"]


def test_a_worn_out_entry_is_retired_instead_of_giving_a_handle_twice() -> None:
    wheel: Wheel[str] = Wheel(NOW_MS)
    wheel.cancel(wheel.add(NOW_MS, "first use"))
    wheel.wear_out()
    last = wheel.add(NOW_MS, "last use")
    assert wheel.cancel(last) == "last use"
    wheel.check_invariants()
    assert wheel.add(NOW_MS, "elsewhere") & 0xFFFFFFFF != last & 0xFFFFFFFF
    assert wheel.cancel(last) is None


@pytest.mark.parametrize(
    ("dues_ms", "error"),
    [([1, 2], ValueError), ([1, -1, 2], ValueError), ([1, 2.0, 3], TypeError), ([1, 2**63, 3], OverflowError)],
)
def test_a_batch_with_a_fault_adds_nothing(dues_ms: list[int], error: type[Exception]) -> None:
    wheel: Wheel[str] = Wheel(0)
    with pytest.raises(error):
        wheel.add_many(dues_ms, ["a", "b", "c"])
    assert len(wheel) == 0
    wheel.check_invariants()


def test_a_wheel_does_not_start_before_zero() -> None:
    with pytest.raises(ValueError, match="now_ms must not be negative, got -1"):
        Wheel(-1)


@pytest.mark.parametrize("way_out", ["cancel", "advance", "clear", "death of the wheel"])
def test_an_item_is_held_while_it_waits_and_no_longer(way_out: str) -> None:
    wheel: Wheel[Payload] = Wheel(NOW_MS)
    payload = Payload()
    seen = weakref.ref(payload)
    handle = wheel.add(NOW_MS + 1, payload)
    del payload
    assert seen() is not None
    if way_out == "cancel":
        wheel.cancel(handle)
    elif way_out == "advance":
        wheel.advance(NOW_MS + 1)
    elif way_out == "clear":
        wheel.clear()
    else:
        del wheel
    assert seen() is None


def test_a_batch_leaves_the_reference_counts_as_they_were() -> None:
    payload = Payload()
    before = sys.getrefcount(payload)
    wheel: Wheel[Payload] = Wheel(NOW_MS)
    handles = wheel.add_many([NOW_MS + i for i in range(1000)], [payload] * 1000)
    assert sys.getrefcount(payload) == before + 1000
    for handle in handles[:300]:
        wheel.cancel(handle)
    wheel.advance(NOW_MS + 600)
    wheel.clear()
    assert sys.getrefcount(payload) == before


def test_a_finalizer_may_cancel_in_the_middle_of_an_advance() -> None:
    wheel: Wheel[int] = Wheel(NOW_MS)
    handles = wheel.add_many([NOW_MS + 1] * 10, list(range(10)))
    finalized = []

    class Request:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            finalized.append(wheel.cancel(handles[3]))

    gc.collect()
    gc.disable()
    thresholds = gc.get_threshold()
    Request()
    try:
        gc.set_threshold(1)
        gc.enable()
        due = wheel.advance(NOW_MS + 1)  # allocating its answer collects the request
    finally:
        gc.set_threshold(*thresholds)
    assert finalized == [3]
    assert due == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    wheel.check_invariants()
