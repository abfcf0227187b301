"""The order of ready runs: by priority with weights, fair between tenants, bounded per lane; nothing lost or twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.model import Priority
from engine.rules.ready import WEIGHTS, ReadyQueue, StartOrder


def drained(queue: ReadyQueue[str], finish: bool = True) -> list[str]:
    """Everything that may start, in order; each ends at once unless told otherwise. Items are ``tenant/origin/…``."""
    popped = []
    while (item := queue.pop()) is not None:
        popped.append(item)
        if finish:
            tenant, origin, _ = item.split("/")
            queue.done(int(tenant), origin)
    return popped


def push(queue: ReadyQueue[str], tenant: int, origin: str, count: int, priority: Priority = Priority.NORMAL) -> None:
    for number in range(count):
        queue.push(f"{tenant}/{origin}/{priority.name}{number}", priority, tenant, origin, 0)


def test_p5_under_load_each_priority_gets_its_weight_and_low_never_starves() -> None:
    queue: ReadyQueue[str] = ReadyQueue(10_000)
    for priority in Priority:
        push(queue, 1, "a", 1_000, priority)
    first = [item.split("/")[2].rstrip("0123456789") for item in drained(queue)[:150]]
    assert Counter(first) == {priority.name: 10 * weight for priority, weight in WEIGHTS.items()}


def test_p5_a_priority_alone_has_everything_at_once() -> None:
    queue: ReadyQueue[str] = ReadyQueue(10_000)
    push(queue, 1, "a", 50, Priority.LOW)
    assert len(drained(queue)) == 50


def test_p6_a_tenants_burst_takes_turns_with_the_others() -> None:
    queue: ReadyQueue[str] = ReadyQueue(10_000)
    push(queue, 1, "big", 1_000)
    push(queue, 2, "small", 3)
    assert [item[0] for item in drained(queue)[:6]] == ["1", "2", "1", "2", "1", "2"]


def test_p6_many_origins_do_not_buy_a_tenant_more_turns() -> None:
    queue: ReadyQueue[str] = ReadyQueue(10_000)
    for number in range(20):
        push(queue, 1, f"origin-{number}", 5)
    push(queue, 2, "only", 5)
    assert Counter(item[0] for item in drained(queue)[:10]) == {"1": 5, "2": 5}


def test_p6_a_lane_whose_endpoint_hangs_holds_up_nobody_but_itself() -> None:
    queue: ReadyQueue[str] = ReadyQueue(3)
    push(queue, 1, "hangs", 100)
    push(queue, 1, "answers", 2)
    push(queue, 2, "answers", 2)
    assert len(drained(queue, finish=False)) == 3 + 2 + 2
    assert len(queue) == 97
    queue.done(1, "hangs")
    assert queue.pop() == "1/hangs/NORMAL3"
    assert queue.pop() is None


def test_what_waits_for_its_own_full_lane_is_held_and_what_waits_for_the_executor_is_not() -> None:
    queue: ReadyQueue[str] = ReadyQueue(1)
    for now_ms in (10, 20, 30):
        queue.push(f"1/full/{now_ms}", Priority.NORMAL, 1, "full", now_ms)
        queue.push(f"1/free/{now_ms}", Priority.NORMAL, 1, "free", now_ms)
    assert queue.pop() == "1/full/10"
    assert queue.held_since(25) == ["1/full/20"]
    assert len(queue) == 4
    queue.done(1, "full")
    assert sorted(drained(queue)) == ["1/free/10", "1/free/20", "1/free/30", "1/full/30"]


def test_p5_runs_on_time_keep_half_of_the_starts_beside_300_000_late_ones() -> None:
    order: StartOrder[str] = StartOrder(100_000, 1_000)
    for number in range(300_000):
        order.push(f"late-{number}", Priority.CRITICAL, 1, "a", late=True, now_ms=0)
    for number in range(1_000):
        order.push(f"on-time-{number}", Priority.LOW, 2, "a", late=False, now_ms=0)
    started = list(iter(order.pop, None))
    assert len(started) == 1_000
    assert Counter(late for _, late in started) == {True: 500, False: 500}
    assert order.pop() is None


def test_p5_late_runs_alone_leave_half_of_the_room_for_those_to_come() -> None:
    order: StartOrder[str] = StartOrder(100_000, 1_000)
    for number in range(5_000):
        order.push(f"late-{number}", Priority.NORMAL, 1, "a", late=True, now_ms=0)
    assert sum(1 for _ in iter(order.pop, None)) == 500
    order.push("on time", Priority.NORMAL, 2, "b", late=False, now_ms=0)
    assert order.pop() == ("on time", False)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 3), st.sampled_from("ab"), st.sampled_from(list(Priority))),
        st.tuples(st.just("pop")),
        st.tuples(st.just("done"), st.integers(0, 20)),
    ),
    max_size=200,
)


@given(steps, st.integers(1, 4))
def test_every_item_comes_out_once_and_no_lane_exceeds_its_bound(script: list[tuple], in_flight_max: int) -> None:
    queue: ReadyQueue[tuple[int, int, str]] = ReadyQueue(in_flight_max)
    waiting, started = set(), []
    for number, step in enumerate(script):
        if step[0] == "push":
            item = (number, step[1], step[2])
            waiting.add(item)
            queue.push(item, step[3], step[1], step[2], number)
        elif step[0] == "pop" and (popped := queue.pop()) is not None:
            waiting.remove(popped)
            started.append(popped)
            assert sum(1 for item in started if item[1:] == popped[1:]) <= in_flight_max
        elif step[0] == "done" and started:
            _, tenant, origin = started.pop(step[1] % len(started))
            queue.done(tenant, origin)
        assert len(queue) == len(waiting)
    while waiting or started:
        while (popped := queue.pop()) is not None:
            waiting.remove(popped)
            started.append(popped)
        assert started, "runs are waiting, nothing is in flight, and nothing may start"
        _, tenant, origin = started.pop()
        queue.done(tenant, origin)
