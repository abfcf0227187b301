"""What an outcome makes of its run: success, another try after a jittered pause, or the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model import OutcomeKind, Reason, RetryPolicy, RunState
from engine.rules.retry import RETRY_AFTER_MS_MAX, Verdict, judge, pause_ms, retry_after_ms

NOW_MS = 1_796_083_200_000
POLICY = RetryPolicy()


def verdict(
    kind: OutcomeKind = OutcomeKind.ANSWERED,
    status: int | None = 500,
    tries: int = 1,
    policy: RetryPolicy = POLICY,
    now_ms: int = NOW_MS,
    retry_after: str | None = None,
) -> Verdict:
    return judge(
        kind,
        status,
        tries,
        policy,
        scheduled_at_ms=NOW_MS,
        now_ms=now_ms,
        retry_after=retry_after,
        draw=lambda: 0.5,
    )


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_2xx_succeeds(status: int) -> None:
    assert verdict(status=status) == Verdict(RunState.SUCCEEDED)


@pytest.mark.parametrize("status", [100, 199, 300, 301, 400, 404, 410, 429, 500, 503])
def test_every_other_status_is_tried_again(status: int) -> None:
    assert verdict(status=status) == Verdict(RunState.WAITING, Reason.RETRY, NOW_MS + 5_000)


@pytest.mark.parametrize("kind", [OutcomeKind.TIMEOUT, OutcomeKind.DNS_FAILED, OutcomeKind.CONNECTION_BROKEN])
def test_a_call_that_failed_is_tried_again_until_its_tries_are_used_up(kind: OutcomeKind) -> None:
    assert verdict(kind, None, tries=4).state == RunState.WAITING
    assert verdict(kind, None, tries=5) == Verdict(RunState.FAILED)


def test_p9_a_refused_target_is_never_tried_again() -> None:
    assert verdict(OutcomeKind.TARGET_REFUSED, None) == Verdict(RunState.FAILED)


def test_a_cancelled_run_is_cancelled_whatever_its_tries() -> None:
    assert verdict(OutcomeKind.CANCELLED, None, tries=5) == Verdict(RunState.CANCELLED)


def test_a_try_that_would_come_after_max_age_is_not_waited_for() -> None:
    old = RetryPolicy(max_age_ms=60_000)
    assert verdict(policy=old, now_ms=NOW_MS + 56_000) == Verdict(RunState.FAILED, Reason.MAX_AGE)
    assert verdict(policy=old, now_ms=NOW_MS + 55_000).state == RunState.WAITING


def test_pauses_double_up_to_their_maximum_and_are_drawn_from_the_whole_range() -> None:
    policy = RetryPolicy(backoff_ms=1_000, max_backoff_ms=10_000)
    most = [pause_ms(tries, policy, None, NOW_MS, lambda: 0.9999) for tries in range(1, 7)]
    assert most == [999, 1_999, 3_999, 7_999, 9_999, 9_999]
    assert pause_ms(3, policy, None, NOW_MS, lambda: 0.0) == 0


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_bounded_whatever_the_try(tries: int, drawn: float) -> None:
    assert 0 <= pause_ms(tries, POLICY, None, NOW_MS, lambda: drawn) <= POLICY.max_backoff_ms


def test_retry_after_is_a_floor_in_seconds_or_as_a_date() -> None:
    assert verdict(retry_after="120").due_at_ms == NOW_MS + 120_000
    assert verdict(retry_after="0").due_at_ms == NOW_MS + 5_000
    assert retry_after_ms("Tue, 01 Dec 2026 00:01:00 GMT", NOW_MS) == 60_000
    assert retry_after_ms("Mon, 30 Nov 2026 00:01:00 GMT", NOW_MS) == 0


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "٣", "Tue, 32 Dec 2026 00:01:00 GMT", "9" * 400])
def test_a_retry_after_that_is_none_is_ignored_or_bounded(text: str) -> None:
    asked_ms = retry_after_ms(text, NOW_MS)
    assert asked_ms is None or 0 <= asked_ms <= RETRY_AFTER_MS_MAX


@given(st.text(max_size=50))
def test_no_retry_after_breaks_the_judgement(text: str) -> None:
    assert verdict(retry_after=text).state in (RunState.WAITING, RunState.FAILED)
