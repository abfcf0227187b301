"""What a job's versions say should have happened, held against what did: one outcome for every scheduled time.

A version's times begin at the next time that was written with it and end where a later version says so:

* an edit of anything but the schedule, a pause or a resume changes no time: the schedule's times go on;
* an edit of the schedule lets the old times stand up to the end of the freeze window, or up to the edit itself where
  the job is paused;
* a delete ends them at once.

A time of these must have a run, or lie in a skipped range; not both, and nothing else may have run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.model import FINAL_STATES, Cron, JobState, Reason, RunAt, RunState, Trigger
from engine.rules.changes import START_MARGIN_MS
from engine.rules.schedule import next_n_times, next_time

FOREVER_MS = 1 << 62
TIMES_AT_ONCE = 1_000

# A run that ended so may lie at a time that a later change took away: nobody was called.
NEVER_CALLED = frozenset({RunState.CANCELLED, RunState.SKIPPED})

Schedule = RunAt | Cron


class Version(NamedTuple):
    """A row of ``job_versions``; ``next_run_at_ms`` is the job's after the change."""

    version: int
    state: JobState
    written_at_ms: int
    next_run_at_ms: int | None
    schedule: Schedule


class Cursor(NamedTuple):
    """Where the planner stands: the job's state, and the first time that nobody has decided on; None: there is none."""

    state: JobState
    undecided_from_ms: int | None


class Outcome(NamedTuple):
    """A run's row."""

    scheduled_at_ms: int
    version: int
    state: RunState
    trigger: Trigger
    started_at_ms: int | None


class SkippedRange(NamedTuple):
    """Both ends belong to it."""

    from_at_ms: int
    to_at_ms: int
    version: int
    reason: Reason


class Span(NamedTuple):
    """Times that a schedule has by the versions from ``first`` to ``last``, both ends of either included. Up to
    ``allowed_until_ms`` a run may stand that had begun when its job was changed; it need not be there."""

    schedule: Schedule
    first: int
    last: int
    from_ms: int
    until_ms: int
    allowed_until_ms: int


class Wrong(StrEnum):
    """What a scheduled time can suffer from."""

    MISSING = "missing"  # neither a run nor a skipped range
    DOUBLE = "double"  # a run and a skipped range, or two ranges
    EARLY = "early"  # started before its second
    UNEXPECTED = "unexpected"  # a run at a time that no version of the job has


class Finding(NamedTuple):
    wrong: Wrong
    scheduled_at_ms: int


@dataclass(slots=True)
class Tally:
    """Counts of scheduled times. ``undecided``: by the state of a job whose planner has not come to them."""

    times: int = 0
    outcomes: Counter[RunState] = field(default_factory=Counter)
    skipped: Counter[Reason] = field(default_factory=Counter)
    open: int = 0
    undecided: Counter[JobState] = field(default_factory=Counter)
    manual: Counter[RunState] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.times += other.times
        self.open += other.open
        for name in ("outcomes", "skipped", "undecided", "manual"):
            getattr(self, name).update(getattr(other, name))


def audit_job(
    versions: Sequence[Version],
    cursor: Cursor | None,
    runs: Mapping[int, Outcome],
    skips: Sequence[SkippedRange],
    *,
    from_ms: int,
    until_ms: int,
    freeze_ms: int,
) -> tuple[Tally, list[Finding]]:
    """Judge one job in [from, until]. ``runs`` by scheduled time, withdrawn ones left out; ``cursor`` is None once the
    job's row is gone."""
    tally, findings = Tally(), []
    spans = spans_of(versions, freeze_ms)
    expected = dict(_times(spans, from_ms, until_ms))
    ranges = _Ranges(skips)
    for at_ms in sorted(expected):
        wrong = _judge_time(tally, at_ms, expected[at_ms], runs.get(at_ms), ranges, cursor)
        findings += [Finding(wrong, at_ms)] if wrong else []
    for run in runs.values():
        if run.trigger == Trigger.MANUAL:
            tally.manual[run.state] += 1
        elif run.state not in NEVER_CALLED and run.scheduled_at_ms not in expected and not _allowed(spans, run):
            findings.append(Finding(Wrong.UNEXPECTED, run.scheduled_at_ms))
        if run.started_at_ms is not None and run.started_at_ms < run.scheduled_at_ms:
            findings.append(Finding(Wrong.EARLY, run.scheduled_at_ms))
    return tally, findings


def spans_of(versions: Sequence[Version], freeze_ms: int) -> list[Span]:
    """The stretches in which each schedule of a job was in force, oldest first."""
    spans: list[Span] = []
    begun: list[Version] = []
    for version in versions:
        if begun and (version.state == JobState.DELETED or version.schedule != begun[0].schedule):
            spans += _ended(begun, _stands_until(begun[-1], version, freeze_ms), version.written_at_ms)
            begun = []
        if version.state == JobState.DELETED:
            spans = [_cut(span, version.written_at_ms) for span in spans]
        else:
            begun.append(version)
    return spans + (_ended(begun, FOREVER_MS, FOREVER_MS) if begun else [])


def _ended(versions: Sequence[Version], until_ms: int, changed_at_ms: int) -> list[Span]:
    first = versions[0]
    from_ms = _begins(first)
    if from_ms is None:
        return []
    allowed_until_ms = max(until_ms, changed_at_ms + START_MARGIN_MS)
    return [Span(first.schedule, first.version, versions[-1].version, from_ms, until_ms, allowed_until_ms)]


def _cut(span: Span, at_ms: int) -> Span:
    """A delete also ends what an edit had let stand."""
    until_ms = min(span.until_ms, at_ms)
    return span._replace(until_ms=until_ms, allowed_until_ms=min(span.allowed_until_ms, at_ms + START_MARGIN_MS))


def _stands_until(was: Version, version: Version, freeze_ms: int) -> int:
    """How far the old times of an edited or deleted job stand."""
    edited_while_active = was.state == version.state == JobState.ACTIVE
    return version.written_at_ms + (freeze_ms if edited_while_active else 0)


def _begins(version: Version) -> int | None:
    """The first time of a version with a schedule of its own; not written down where the job is paused or is done."""
    if version.next_run_at_ms is not None:
        return version.next_run_at_ms
    if isinstance(version.schedule, RunAt):
        return version.schedule.run_at_ms
    return next_time(version.schedule, version.written_at_ms) if version.state == JobState.PAUSED else None


def _times(spans: Sequence[Span], from_ms: int, until_ms: int) -> Iterator[tuple[int, Span]]:
    """Each time with its span; where two have the same one the later counts."""
    for span in spans:
        after_ms, last_ms = max(from_ms, span.from_ms) - 1, min(until_ms, span.until_ms)
        while after_ms < last_ms and (times := next_n_times(span.schedule, after_ms, TIMES_AT_ONCE)):
            yield from ((at_ms, span) for at_ms in times if at_ms <= last_ms)
            after_ms = times[-1]


def _judge_time(
    tally: Tally, at_ms: int, span: Span, run: Outcome | None, ranges: _Ranges, cursor: Cursor | None
) -> Wrong | None:
    """Count one scheduled time; what is wrong with it, if anything."""
    tally.times += 1
    skips = ranges.over(at_ms)
    versions = [skip.version for skip in skips] + ([run.version] if run else [])
    if run is not None and run.state in FINAL_STATES:
        tally.outcomes[run.state] += 1
    elif run is not None:
        tally.open += 1
    elif skips:
        tally.skipped[skips[0].reason] += 1
    elif cursor and cursor.undecided_from_ms is not None and at_ms >= cursor.undecided_from_ms:
        tally.undecided[cursor.state] += 1
    else:
        return Wrong.MISSING
    return Wrong.DOUBLE if sum(span.first <= version <= span.last for version in versions) > 1 else None


def _allowed(spans: Sequence[Span], run: Outcome) -> bool:
    at_ms = run.scheduled_at_ms
    return any(
        span.from_ms <= at_ms <= span.allowed_until_ms and next_time(span.schedule, at_ms - 1) == at_ms
        for span in spans
    )


class _Ranges:
    """Skipped ranges of one job, asked for by time."""

    def __init__(self, skips: Sequence[SkippedRange]) -> None:
        self._by_end = sorted(skips, key=lambda skip: skip.to_at_ms)
        self._ends = [skip.to_at_ms for skip in self._by_end]

    def over(self, at_ms: int) -> list[SkippedRange]:
        first = bisect_left(self._ends, at_ms)
        return [skip for skip in self._by_end[first:] if skip.from_at_ms <= at_ms]
