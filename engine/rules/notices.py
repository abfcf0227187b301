"""Notices: what a tenant is told about its runs, and how long we go on trying to tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.model import Definition, NoticeKind, Reason, RunKey

# Told for a day at most, at first after ten seconds, then at doubled pauses up to an hour.
GIVE_UP_MS = 24 * 3_600_000
BACKOFF_MS = 10_000
BACKOFF_MS_MAX = 3_600_000

MINUTE_MS = 60_000

TYPES = {NoticeKind.FAILED: "run.failed", NoticeKind.SKIPPED: "run.skipped", NoticeKind.LATE: "run.late"}

# Late and skipped runs come in crowds: what gathers within a minute is told together, once the minute is over.
MERGED = frozenset({NoticeKind.SKIPPED, NoticeKind.LATE})

# Ranges of times that were left out by rule. What a tenant's own pause, edit or delete ended is answered by that call.
RANGES_TOLD = frozenset({Reason.MISSED, Reason.MAX_CATCH_UP, Reason.TOO_OLD})

Row = tuple[int, ...]


class About(NamedTuple):
    """What a notice is about: one run, or a range of skipped times, named by the first of them."""

    kind: NoticeKind
    key: RunKey
    tenant_id: int
    version: int
    runs: int = 1


def notice_row(about: About, now_ms: int) -> Row:
    """A row of ``insert_notices``."""
    kind, key, tenant_id, version, runs = about
    minute_ms = now_ms - now_ms % MINUTE_MS
    about_at_ms, due_ms = (minute_ms, minute_ms + MINUTE_MS) if kind in MERGED else (key.scheduled_at_ms, now_ms)
    return (
        key.partition_id, key.job_id, int(kind), about_at_ms, key.scheduled_at_ms, tenant_id, version, runs, due_ms,
        now_ms,
    )  # fmt: skip


def is_late(definition: Definition, lag_ms: int) -> bool:
    return lag_ms > definition.late_after_ms


def next_try_ms(tries: int, written_at_ms: int, now_ms: int, draw: Callable[[], float]) -> int | None:
    """When a notice that could not be told is told again; None to give up."""
    ceiling_ms = min(BACKOFF_MS_MAX, BACKOFF_MS << min(tries - 1, 20))
    at_ms = now_ms + ceiling_ms // 2 + int(draw() * ceiling_ms / 2)
    return at_ms if at_ms <= written_at_ms + GIVE_UP_MS else None
