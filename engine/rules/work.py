"""Function runs in the hands of workers: leases, deadlines, and what the end of one makes of its run.

A worker holds its run by a lease that each heartbeat renews. Only the server's time counts.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from engine.model import OutcomeKind, Reason, RetryPolicy, RunState
from engine.rules.retry import Verdict, judge

# How often a worker tells that it lives; three of them missed, and the run is given to another.
HEARTBEAT_MS = 5_000
LEASE_MS = 3 * HEARTBEAT_MS

# A worker whose run is cancelled learns it by its next heartbeat; after this the run has ended whatever it answers.
CANCEL_GRACE_MS = 10_000

# Bounds of what workers say.
RESULT_BYTES_MAX = 64 * 1024
ERROR_CHARS_MAX = 1_024
NOTE_CHARS_MAX = 256


class Stop(Enum):
    """Why a worker is to stop, as it is told."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Deed(Enum):
    """What a worker makes of its run. RELEASE: it stops, the code had begun; UNSTARTED: it had not."""

    COMPLETE = auto()
    FAIL = auto()
    FAIL_FOR_GOOD = auto()
    RELEASE = auto()
    UNSTARTED = auto()


class Lapse(Enum):
    """Why a run is taken from its worker."""

    CANCELLED = auto()
    DEADLINE = auto()
    SILENT = auto()


KINDS: dict[Deed | Lapse, OutcomeKind] = {
    Deed.COMPLETE: OutcomeKind.FUNCTION_DONE,
    Deed.FAIL: OutcomeKind.FUNCTION_FAILED,
    Deed.FAIL_FOR_GOOD: OutcomeKind.FUNCTION_FAILED,
    Deed.RELEASE: OutcomeKind.WORKER_LOST,
    Deed.UNSTARTED: OutcomeKind.CANCELLED,
    Lapse.CANCELLED: OutcomeKind.CANCELLED,
    Lapse.DEADLINE: OutcomeKind.TIMEOUT,
    Lapse.SILENT: OutcomeKind.WORKER_LOST,
}


def lease_until_ms(now_ms: int, deadline_ms: int) -> int:
    """How far a heartbeat renews: never beyond the deadline, where the run ends whoever says what."""
    return min(now_ms + LEASE_MS, max(now_ms, deadline_ms))


def stop_of(cancel_requested: bool, now_ms: int, deadline_ms: int) -> Stop | None:
    """What a heartbeat is answered."""
    if cancel_requested:
        return Stop.CANCELLED
    return Stop.DEADLINE if now_ms >= deadline_ms else None


def lapse_of(cancel_requested: bool, now_ms: int, deadline_ms: int) -> Lapse:
    """Why a run whose lease is over is taken back."""
    if cancel_requested:
        return Lapse.CANCELLED
    return Lapse.DEADLINE if now_ms >= deadline_ms else Lapse.SILENT


def tries_after(end: Deed | Lapse, tries: int) -> int:
    """A claim that was given back before the code began is no try."""
    return tries if end in (Deed.UNSTARTED, Lapse.CANCELLED) else tries + 1


def judge_work(
    end: Deed | Lapse,
    tries: int,
    policy: RetryPolicy,
    *,
    scheduled_at_ms: int,
    now_ms: int,
    retry_after: str | None,
    draw: Callable[[], float],
) -> Verdict:
    """What becomes of the run; ``tries`` counts this one, if it is one."""
    if end is Deed.UNSTARTED:
        return Verdict(RunState.WAITING, Reason.GIVEN_BACK, now_ms)
    if end in (Deed.RELEASE, Lapse.SILENT):
        return _again_at_once(end, tries, policy, now_ms)
    if end is Deed.FAIL_FOR_GOOD:
        return Verdict(RunState.FAILED)
    return judge(
        KINDS[end],
        None,
        tries,
        policy,
        scheduled_at_ms=scheduled_at_ms,
        now_ms=now_ms,
        retry_after=retry_after,
        draw=draw,
    )


def _again_at_once(end: Deed | Lapse, tries: int, policy: RetryPolicy, now_ms: int) -> Verdict:
    """The code did not fail, its worker went: no pause would better that."""
    silent = end is Lapse.SILENT
    if tries >= policy.max_attempts:
        return Verdict(RunState.FAILED, Reason.WORKER_LOST if silent else None)
    return Verdict(RunState.WAITING, Reason.REAPED if silent else Reason.RETRY, now_ms)
