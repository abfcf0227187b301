"""What an outcome makes of its run: succeeded, tried again after a pause, or failed for good."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from engine.model import OutcomeKind, Reason, RetryPolicy, RunState

# A pause asked for by Retry-After is honoured up to this, beyond max_backoff too: the receiver knows its own state.
RETRY_AFTER_MS_MAX = 24 * 3_600_000

# Outcomes that a further try cannot better: the target itself is not to be called.
NEVER_RETRIED = frozenset({OutcomeKind.TARGET_REFUSED})


class Verdict(NamedTuple):
    """The run's next state; ``due_at_ms`` is set when it waits for another try."""

    state: RunState
    reason: Reason | None = None
    due_at_ms: int | None = None


def judge(
    kind: OutcomeKind,
    status: int | None,
    tries: int,
    policy: RetryPolicy,
    *,
    scheduled_at_ms: int,
    now_ms: int,
    retry_after: str | None,
    draw: Callable[[], float],
) -> Verdict:
    """``tries`` counts this one; ``draw`` returns a number in [0, 1) for the jitter."""
    if succeeded(kind, status):
        return Verdict(RunState.SUCCEEDED)
    if kind == OutcomeKind.CANCELLED:
        return Verdict(RunState.CANCELLED)
    if kind in NEVER_RETRIED or tries >= policy.max_attempts:
        return Verdict(RunState.FAILED)
    due_at_ms = now_ms + pause_ms(tries, policy, retry_after, now_ms, draw)
    if due_at_ms > scheduled_at_ms + policy.max_age_ms:
        return Verdict(RunState.FAILED, Reason.MAX_AGE)
    return Verdict(RunState.WAITING, Reason.RETRY, due_at_ms)


def succeeded(kind: OutcomeKind, status: int | None) -> bool:
    """A 2xx answer, or a function that completed."""
    if kind == OutcomeKind.ANSWERED:
        return status is not None and 200 <= status < 300
    return kind == OutcomeKind.FUNCTION_DONE


def pause_ms(
    tries: int, policy: RetryPolicy, retry_after: str | None, now_ms: int, draw: Callable[[], float]
) -> int:
    """Full jitter (AWS Architecture Blog, 2015): uniform in [0, min(cap, base * 2**(tries-1))].

    Retry-After is a floor.
    """
    ceiling_ms = min(policy.max_backoff_ms, policy.backoff_ms << min(tries - 1, 40))
    jittered_ms = int(draw() * ceiling_ms)
    asked_ms = retry_after_ms(retry_after, now_ms) if retry_after else None
    return jittered_ms if asked_ms is None else max(asked_ms, jittered_ms)


def retry_after_ms(value: str, now_ms: int) -> int | None:
    """Retry-After as seconds or an HTTP date (RFC 9110, 10.2.3); None if it is neither."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:12]) * 1000, RETRY_AFTER_MS_MAX)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    at_ms = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    return min(max(0, at_ms - now_ms), RETRY_AFTER_MS_MAX)
