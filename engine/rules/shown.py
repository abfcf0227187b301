"""A run as people and programs outside are shown it: by the API, and in the notices to tenants."""

from __future__ import annotations

from typing import Any, Protocol

from engine.model import OutcomeKind, Reason, RunState, Trigger, job_id_text
from engine.rules.timestamps import format_time


class StoredRun(Protocol):
    """The columns of a run that are shown."""

    @property
    def job_id(self) -> int: ...
    @property
    def scheduled_at_ms(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def state(self) -> int: ...
    @property
    def trigger(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def reason(self) -> int | None: ...
    @property
    def outcome(self) -> int | None: ...
    @property
    def status_code(self) -> int | None: ...
    @property
    def started_at_ms(self) -> int | None: ...
    @property
    def finished_at_ms(self) -> int | None: ...


def show_run(name: str, run: StoredRun, now_ms: int) -> dict[str, Any]:
    """The run, of the job with this name, as it stands now."""
    started_ms = run.started_at_ms
    return {
        "job": name,
        "job_id": job_id_text(run.job_id),
        "scheduled_at": format_time(run.scheduled_at_ms),
        "state": shown_state(run, now_ms),
        "reason": None if run.reason is None else Reason(run.reason).name.lower(),
        "trigger": Trigger(run.trigger).name.lower(),
        "started_at": None if started_ms is None else format_time(started_ms),
        "finished_at": None if run.finished_at_ms is None else format_time(run.finished_at_ms),
        "lag_ms": None if started_ms is None else started_ms - run.scheduled_at_ms,
        "attempts": run.tries,
        "outcome": None if run.outcome is None else OutcomeKind(run.outcome).name.lower(),
        "status_code": run.status_code,
        "job_version": run.version,
    }


def show_range(from_at_ms: int, skipped: int) -> dict[str, Any]:
    """What a range of skipped times has beside the run of its last one."""
    return {"skipped_from": format_time(from_at_ms), "skipped": skipped}


def shown_state(run: StoredRun, now_ms: int) -> str:
    """Claimed ahead is pending still: a run is running from its second on."""
    state = RunState(run.state)
    if state == RunState.WAITING or (state == RunState.RUNNING and run.scheduled_at_ms > now_ms):
        return "pending"
    return state.name.lower()
