"""Quotas of starts: counted by second, shared out over executors, never less than one."""

from __future__ import annotations

from engine.rules.quota import StartQuota, share


def test_a_quota_is_full_for_the_rest_of_its_second_and_empty_in_the_next() -> None:
    quota = StartQuota()
    assert [quota.admit("a", 2, 1_000 + ms) for ms in (0, 500, 999)] == [True, True, False]
    assert quota.admit("b", 2, 1_999)
    assert quota.admit("a", 2, 2_000)


def test_every_executor_has_a_part_of_at_least_one() -> None:
    assert [share(500, live) for live in (0, 1, 2, 500, 5_000)] == [500, 500, 250, 1, 1]
