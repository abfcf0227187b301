"""What an edit, a pause and a delete do to a run of the job that is open: the table of state, trigger and time."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from engine.model import JobState, Reason, RunState, Trigger, is_door

# A claimed run due within this is its holder's to take back: it may fire it until it has read the signal, and where it
# cannot read, until its lease is over. Taken back over its head, a call might be made that no run knows of.
START_MARGIN_MS = 30_000

# What is held is due at no time that comes; resuming sets a time.
HELD_UNTIL_MS = 9_000_000_000_000_000


class OpenRun(NamedTuple):
    """A run that has not ended, locked. ``tries`` counts attempts that may have fired."""

    partition_id: int
    scheduled_at_ms: int
    job_id: int
    state: RunState
    attempt: int
    tries: int
    worker_id: int | None
    trigger: Trigger
    version: int
    priority: int
    reason: int | None
    tenant_id: int


class Deed(Enum):
    """STAND: nothing. WITHDRAW: taken back, as if never planned. HOLD: waits in deferred. SKIP: ends, on record.
    ASK: only its holder knows whether the first byte has left; it takes the run back if not."""

    STAND = auto()
    WITHDRAW = auto()
    HOLD = auto()
    SKIP = auto()
    ASK = auto()


def on_edit(run: OpenRun, frozen_until_ms: int) -> Deed:
    """A planned run within the freeze window fires with the version it was planned with."""
    beyond = run.scheduled_at_ms > frozen_until_ms
    return Deed.WITHDRAW if beyond and run.trigger == Trigger.SCHEDULE else Deed.STAND


def on_pause(run: OpenRun, now_ms: int, replaced: bool) -> Deed:
    """Runs started by hand stand; scheduled ones go back; retries and caught-up ones wait. ``replaced``: the run was
    planned with an earlier schedule, so that nobody would plan it again: it ends, on record. A dead letter's tries have
    begun again, and its reason tells."""
    if run.trigger == Trigger.MANUAL:
        return Deed.STAND
    if run.state == RunState.RUNNING:
        deed = _taken_from_holder(run, now_ms)
    else:
        fresh = run.trigger == Trigger.SCHEDULE and run.tries == 0 and run.reason != Reason.RETRY
        deed = Deed.WITHDRAW if fresh else Deed.HOLD
    return Deed.SKIP if deed is Deed.WITHDRAW and replaced else deed


def on_delete(run: OpenRun, now_ms: int) -> Deed:
    """What is already due ends as skipped; the future is taken back."""
    if run.state == RunState.RUNNING:
        return _taken_from_holder(run, now_ms)
    return Deed.WITHDRAW if run.scheduled_at_ms > now_ms else Deed.SKIP


def on_taken_back(run: OpenRun, job_state: JobState, now_ms: int, replaced: bool) -> Deed:
    """What its holder makes of a claimed run that it was asked about and has not started. STAND: it waits for anyone,
    since the change that asked has been undone meanwhile."""
    waiting = run._replace(state=RunState.WAITING)
    if job_state == JobState.PAUSED:
        return on_pause(waiting, now_ms, replaced)
    if job_state == JobState.DELETED:
        return on_delete(waiting, now_ms)
    return Deed.STAND


def _taken_from_holder(run: OpenRun, now_ms: int) -> Deed:
    """A function run begins with its claim: it has started."""
    if is_door(run.worker_id):
        return Deed.STAND
    return Deed.WITHDRAW if run.scheduled_at_ms > now_ms + START_MARGIN_MS else Deed.ASK
