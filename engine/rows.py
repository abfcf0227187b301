"""Runs and attempts as they are stored, in MySQL and in Cassandra alike: times in milliseconds since the epoch, states
and kinds as the numbers of engine/model.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RunRow(NamedTuple):
    """A run."""

    scheduled_at_ms: int
    job_id: int
    version: int
    state: int
    trigger: int
    attempt: int
    tries: int
    reason: int | None
    outcome: int | None
    status_code: int | None
    started_at_ms: int | None
    finished_at_ms: int | None
    demoted: int


class EndRow(NamedTuple):
    """How a run ended, and when: what numbers are made of."""

    state: int
    scheduled_at_ms: int
    started_at_ms: int | None
    finished_at_ms: int | None


class AttemptRow(NamedTuple):
    """A failed attempt."""

    attempt: int
    outcome: int
    status_code: int | None
    started_at_ms: int | None
    finished_at_ms: int
    detail: str | None
    answer: bytes | None


class Report(NamedTuple):
    """What workers have said of a function's run, in its last attempt that said anything. ``result`` is JSON."""

    attempt: int
    progress: int | None
    note: str | None
    result: bytes | None


class FinishedRun(NamedTuple):
    """What history keeps of a run: whose it is, its failed attempts in their order, and a function's report."""

    tenant_id: int
    priority: int
    run: RunRow
    attempts: Sequence[AttemptRow] = ()
    report: Report | None = None


class PastRun(NamedTuple):
    """What is read back of one."""

    run: RunRow
    attempts: Sequence[AttemptRow]
    report: Report | None


def merge_attempts(earlier: Sequence[AttemptRow], later: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Failed attempts that are kept in two places, in their order; of one that is in both, the later."""
    return [by_number for _, by_number in sorted({each.attempt: each for each in (*earlier, *later)}.items())]
