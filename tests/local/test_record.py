"""The counting of a receiver's record."""

from engine.local.record import Call, report, reports

SECOND_MS = 1_900_000_000_000


def call(name: str, late_ms: int, attempt: int = 1, status: int = 200, key: str | None = None) -> Call:
    return Call(SECOND_MS + late_ms, key or f"run_{name}", attempt, SECOND_MS, name, status)


def test_what_was_expected_and_never_came_is_lost():
    found = report([call("a", 3)], [("a", SECOND_MS), ("b", SECOND_MS), ("a", SECOND_MS + 1000)])
    assert (found.expected, found.called, found.lost) == (3, 1, 2)
    assert not found.flawless


def test_a_call_after_an_answered_one_is_doubled():
    assert report([call("a", 3), call("a", 9, attempt=2)]).doubled == 1


def test_a_retry_after_a_failure_is_not_doubled_but_a_call_after_that_is():
    calls = [call("a", 3, 1, 503), call("a", 9, 2, 0), call("a", 20, 3), call("a", 30, 4)]
    found = report(calls)
    assert (found.called, found.doubled) == (1, 1)


def test_a_call_before_its_second_is_early_by_a_millisecond():
    assert report([call("a", -1), call("b", 0)]).early == 1


def test_a_run_is_as_late_as_its_first_arrival_whatever_the_order_of_the_record():
    found = report([call("a", 500, 2), call("a", 7, 1, 503)])
    assert (found.lag_p50_ms, found.lag_max_ms) == (7, 7)


def test_a_name_used_again_for_the_same_second_is_two_runs_not_a_double():
    assert report([call("a", 1, key="one"), call("a", 2, key="two")]).doubled == 0


def test_reports_are_split_by_group_also_where_nothing_came():
    expected = [("high-1", SECOND_MS), ("low-1", SECOND_MS), ("low-2", SECOND_MS)]
    split = reports([call("high-1", 1), call("low-1", 2)], expected, lambda name: name.split("-")[0])
    assert {group: found.lost for group, found in split.items()} == {"high": 0, "low": 1}
