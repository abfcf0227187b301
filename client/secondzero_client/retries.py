"""When a call is tried again: after 429, 503 and what proxies say instead, with growing pauses; Retry-After is a floor.

Pure: the clock and the dice are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime

# The call was turned away: it had no effect, whatever it was.
TURNED_AWAY = 429
# With Retry-After: the same call, by its Idempotency-Key, is still being carried out.
UNDER_WAY = 409
# The service, or a proxy before it, is away; the call may have had its effect.
AWAY = frozenset({502, 503, 504})
RETRY_AFTER_S_MAX = 24 * 3600


@dataclass(frozen=True)
class RetryPolicy:
    """``total_s``: how long one call is tried in all. Pauses are random, up to a ceiling that doubles."""

    total_s: float = 60.0
    first_pause_s: float = 0.2
    pause_s_max: float = 10.0


@dataclass(frozen=True)
class NoAnswer:
    """A connection that failed; ``sent`` is False where the request certainly never left."""

    error: Exception
    sent: bool


class Tries:
    """The tries of one call. ``repeatable``: a second effect of it would be none."""

    def __init__(self, policy: RetryPolicy, repeatable: bool, now_s: float, total_s: float | None = None) -> None:
        self._policy = policy
        self._repeatable = repeatable
        self._ends_s = now_s + (policy.total_s if total_s is None else total_s)
        self._ceiling_s = policy.first_pause_s
        self.maybe_done = False
        """Whether an earlier try may have had its effect."""

    def pause_s(
        self, outcome: int | NoAnswer, retry_after_s: float | None, now_s: float, draw: Callable[[], float]
    ) -> float | None:
        """How long to wait before the next try; None: this outcome stands. ``draw`` returns a number in [0, 1)."""
        unknown = outcome.sent if isinstance(outcome, NoAnswer) else outcome in AWAY
        under_way = outcome == UNDER_WAY and retry_after_s is not None
        wanted = unknown or under_way or isinstance(outcome, NoAnswer) or outcome == TURNED_AWAY
        if not wanted or (unknown and not self._repeatable):
            return None
        self.maybe_done |= unknown
        pause_s = (retry_after_s or 0) + draw() * self._ceiling_s
        self._ceiling_s = min(2 * self._ceiling_s, self._policy.pause_s_max)
        return pause_s if now_s + pause_s < self._ends_s else None


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """Retry-After as seconds or an HTTP date (RFC 9110, 10.2.3); ``now_s`` since the epoch. None if it is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), RETRY_AFTER_S_MAX)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    at_s = at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()
    return min(max(0.0, at_s - now_s), RETRY_AFTER_S_MAX)
