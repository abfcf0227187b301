"""Results that end at the same moment are told together, and each has its own word from the service all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from secondzero_client import Client, Conflict, Invalid
from secondzero_client.ends import RESULTS_MAX, Ends
from secondzero_client.retries import RetryPolicy
from tests.support.work_hub import WorkHub

QUICK = RetryPolicy(total_s=5, first_pause_s=0.01, pause_s_max=0.05)


@pytest.fixture
def hub() -> Iterator[WorkHub]:
    with WorkHub() as hub:
        yield hub


def told(hub: WorkHub, tokens: list[str], under_way: int = 100) -> list[BaseException | None]:
    """Each of these told by a thread of its own at the same moment: what was raised there."""
    gate = threading.Barrier(len(tokens))

    def tell(token: str) -> BaseException | None:
        gate.wait()
        try:
            ends.complete(token, {"of": token})
        except Exception as error:
            return error
        return None

    with Client(hub.url, "sz_x", retries=QUICK) as client, ThreadPoolExecutor(len(tokens)) as pool:
        ends = Ends(client, lambda: under_way)
        return list(pool.map(tell, tokens))


def tokens_of(count: int) -> list[str]:
    return [f"token-{number}" for number in range(count)]


def test_what_ends_at_the_same_moment_shares_calls_and_each_is_told_once(hub: WorkHub) -> None:
    tokens = tokens_of(100)
    assert told(hub, tokens) == [None] * 100
    assert [hub.ends(token) for token in tokens] == [[("complete", {"result": {"of": token}})] for token in tokens]
    assert sum(len(call) for call in hub.together) > 50
    assert max(len(call) for call in hub.together) <= RESULTS_MAX


def test_a_run_that_is_alone_waits_for_nobody(hub: WorkHub) -> None:
    assert told(hub, ["token"], under_way=1) == [None]
    assert (hub.together, hub.ends("token")) == ([], [("complete", {"result": {"of": "token"}})])


def test_p3_one_that_is_stale_hears_it_and_no_other_does(hub: WorkHub) -> None:
    tokens = tokens_of(20)
    hub.stale.add(tokens[7])
    raised = told(hub, tokens)
    assert isinstance(raised.pop(7), Conflict)
    assert raised == [None] * 19


@pytest.mark.parametrize(("status", "error"), [(422, Invalid), (413, Exception)])
def test_a_call_that_is_refused_is_told_to_each_for_itself(
    hub: WorkHub, status: int, error: type[Exception]
) -> None:
    hub.refuses["complete"] = status
    assert all(isinstance(raised, error) for raised in told(hub, tokens_of(10)))


def test_a_call_that_fails_holds_up_only_those_in_it_and_the_others_are_told_at_once(hub: WorkHub) -> None:
    """As many as three calls' worth: after the first has failed each goes its own way."""
    hub.refuses["complete"] = 503
    gate = threading.Event()

    def lift(*_: object) -> None:
        hub.refuses.clear()
        gate.set()

    tokens = tokens_of(3 * RESULTS_MAX)
    threading.Timer(0.3, lift).start()
    assert told(hub, tokens) == [None] * len(tokens)
    assert gate.is_set()
    assert len(hub.together) <= 4


def test_a_service_that_is_away_costs_no_result(hub: WorkHub) -> None:
    tokens = tokens_of(30)
    hub.away = 15
    assert told(hub, tokens) == [None] * 30
    assert all(hub.ends(token) for token in tokens)
