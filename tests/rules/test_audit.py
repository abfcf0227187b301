"""Auditing: what a job's versions say should have happened, and every way in which it may not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from engine.model import Cron, JobState, Reason, RunAt, RunState, Trigger
from engine.rules.audit import Cursor, Finding, Outcome, SkippedRange, Tally, Version, Wrong, audit_job, spans_of
from engine.rules.changes import START_MARGIN_MS

S = 1_000
T0 = 1_899_979_200_000  # 2030-03-17T12:00:00Z
FREEZE_MS = 30 * S
EACH_SECOND = Cron("* * * * * *")
EACH_MINUTE = Cron("* * * * *")

ACTIVE, PAUSED, DELETED = JobState.ACTIVE, JobState.PAUSED, JobState.DELETED


def version(
    number: int, state: JobState, written_s: float, next_s: int | None, schedule: RunAt | Cron
) -> Version:
    """Times in seconds from T0."""
    next_ms = None if next_s is None else T0 + next_s * S
    return Version(number, state, T0 + int(written_s * S), next_ms, schedule)


CREATED = version(1, ACTIVE, -5.5, 0, EACH_SECOND)


def ran(*seconds: int, state: RunState = RunState.SUCCEEDED) -> dict[int, Outcome]:
    return {T0 + s * S: Outcome(T0 + s * S, 1, state, Trigger.SCHEDULE, T0 + s * S + 5) for s in seconds}


def judged(
    versions: Sequence[Version],
    runs: Mapping[int, Outcome],
    skips: Sequence[SkippedRange] = (),
    cursor: Cursor | None = None,
    until_s: int = 4,
) -> tuple[Tally, list[Finding]]:
    return audit_job(
        versions, cursor, runs, skips, from_ms=T0, until_ms=T0 + until_s * S, freeze_ms=FREEZE_MS
    )  # fmt: skip


def skipped(from_s: int, to_s: int, reason: Reason = Reason.MISSED) -> SkippedRange:
    return SkippedRange(T0 + from_s * S, T0 + to_s * S, 1, reason)


def test_p2_a_run_for_every_time_is_flawless_and_counted_by_outcome() -> None:
    tally, findings = judged([CREATED], ran(0, 1, 2, 3) | ran(4, state=RunState.FAILED))
    assert findings == []
    assert (tally.times, tally.outcomes) == (5, {RunState.SUCCEEDED: 4, RunState.FAILED: 1})


def test_p2_a_time_without_run_and_range_is_missing() -> None:
    assert judged([CREATED], ran(0, 1, 3, 4))[1] == [Finding(Wrong.MISSING, T0 + 2 * S)]


def test_p2_a_gap_that_a_skipped_range_covers_is_explained_with_its_reason() -> None:
    tally, findings = judged([CREATED], ran(0, 4), [skipped(1, 3)])
    assert findings == []
    assert tally.skipped == {Reason.MISSED: 3}


@pytest.mark.parametrize("ranges", [[skipped(2, 3)], [skipped(2, 3), skipped(3, 3)]])
def test_p1_a_time_with_a_run_and_a_range_or_with_two_ranges_is_double(ranges: list[SkippedRange]) -> None:
    _, findings = judged([CREATED], ran(0, 1, 2, 4), ranges)
    assert {finding.wrong for finding in findings} == {Wrong.DOUBLE}


def test_p4_a_run_that_started_before_its_second_is_early() -> None:
    runs = ran(0, 1, 2, 3, 4)
    runs[T0 + S] = runs[T0 + S]._replace(started_at_ms=T0 + S - 1)
    assert judged([CREATED], runs)[1] == [Finding(Wrong.EARLY, T0 + S)]


def test_a_run_at_a_time_that_the_job_never_had_is_unexpected_and_one_by_hand_is_not() -> None:
    once = version(1, ACTIVE, -5, 2, RunAt(T0 + 2 * S))
    assert judged([once], ran(2, 3))[1] == [Finding(Wrong.UNEXPECTED, T0 + 3 * S)]
    at_ms = T0 + 3 * S + 1
    by_hand = {at_ms: Outcome(at_ms, 1, RunState.SUCCEEDED, Trigger.MANUAL, at_ms)}
    tally, findings = judged([once], ran(2) | by_hand)
    assert findings == []
    assert tally.manual == {RunState.SUCCEEDED: 1}


def test_open_runs_and_times_that_the_planner_has_not_reached_are_to_come() -> None:
    runs = ran(0) | ran(1, state=RunState.WAITING)
    tally, findings = judged([CREATED], runs, cursor=Cursor(ACTIVE, T0 + 2 * S))
    assert findings == []
    assert (tally.open, tally.undecided) == (1, {ACTIVE: 3})


def test_an_edit_of_the_schedule_lets_the_old_times_stand_up_to_the_freeze_window() -> None:
    edit = version(2, ACTIVE, 10.5, 60, EACH_MINUTE)
    old, new = spans_of([CREATED, edit], FREEZE_MS)
    assert (old.from_ms, old.until_ms) == (T0, T0 + 40_500)
    assert (new.schedule, new.from_ms) == (EACH_MINUTE, T0 + 60 * S)


def test_an_edit_of_anything_else_a_pause_and_a_resume_change_no_time() -> None:
    edit = version(2, ACTIVE, 1.5, 32, EACH_SECOND)
    pause = version(3, PAUSED, 2.5, None, EACH_SECOND)
    resume = version(4, ACTIVE, 9.5, 10, EACH_SECOND)
    (span,) = spans_of([CREATED, edit, pause, resume], FREEZE_MS)
    assert span.from_ms == T0
    tally, findings = judged([CREATED, edit, pause, resume], ran(0, 1, 2), [skipped(3, 9, Reason.MISSED)], until_s=9)
    assert findings == []
    assert tally.times == 10


def test_times_inside_a_pause_that_lasts_are_undecided() -> None:
    pause = version(2, PAUSED, 1.5, None, EACH_SECOND)
    tally, findings = judged([CREATED, pause], ran(0, 1), cursor=Cursor(PAUSED, T0 + 2 * S))
    assert findings == []
    assert tally.undecided == {PAUSED: 3}


def test_an_edit_of_a_paused_jobs_schedule_ends_the_old_times_at_once() -> None:
    pause = version(2, PAUSED, 1.5, None, EACH_SECOND)
    edit = version(3, PAUSED, 20.5, None, EACH_MINUTE)
    old, new = spans_of([CREATED, pause, edit], FREEZE_MS)
    assert old.until_ms == T0 + 20_500
    assert new.from_ms == T0 + 60 * S


def test_a_delete_ends_the_times_but_a_run_that_had_begun_may_stand() -> None:
    delete = version(2, DELETED, 2.5, None, EACH_SECOND)
    assert judged([CREATED, delete], ran(0, 1, 2))[1] == []
    assert judged([CREATED, delete], ran(0, 1, 2, 3))[1] == []
    late_s = 4 + START_MARGIN_MS // S
    _, findings = judged([CREATED, delete], ran(0, 1, 2, late_s), until_s=late_s)
    assert findings == [Finding(Wrong.UNEXPECTED, T0 + late_s * S)]
