"""Runs that have left MySQL: a name's runs in Cassandra, newest first, read as a list walks down through time.

MySQL is always asked first: a run leaves it only once it stands in Cassandra, so that between the two none is missed;
one that stands in both is the same in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from engine.rows import RunRow

if TYPE_CHECKING:
    from engine.history.history import History

# Rows read for one page at most, where a filter lets few of them through.
ROWS_READ_MAX = 10_000
FILTERED_ROWS = 1_000


class PastRuns:
    """Of one page. ``known_from_ms``: everything at this time or later has been answered; ``short``: that is later than
    was asked for."""

    def __init__(
        self,
        history: History,
        tenant_id: int,
        job_ids: Sequence[int],
        states: Collection[int] | None,
        from_ms: int,
        rows: int,
    ) -> None:
        """``states``: None for every one. ``rows``: as many are enough for the page."""
        self._history = history
        self._tenant_id = tenant_id
        self._states = states
        self._from_ms = from_ms
        self._rows = rows if states is None else max(rows, FILTERED_ROWS)
        self._read = 0
        # For each job: what is read and not answered yet, and the time from which on downwards nothing is read.
        self._waiting: dict[int, deque[RunRow]] = {job_id: deque() for job_id in job_ids}
        self._unread_ms: dict[int, int] = {}
        self.known_from_ms = from_ms
        self.short = False

    async def window(self, from_ms: int, to_ms: int, rows_max: int) -> list[RunRow]:
        """Those of [from, to], down to where there are enough of them or too many had to be read; each window must end
        where the one before began."""
        found: list[RunRow] = []
        self.known_from_ms = from_ms
        for job_id, waiting in self._waiting.items():
            await self._read_down_to(job_id, from_ms, to_ms, rows_max)
            while waiting and waiting[0].scheduled_at_ms >= from_ms:
                found.append(waiting.popleft())
        return [run for run in found if run.scheduled_at_ms >= self.known_from_ms]

    async def _read_down_to(self, job_id: int, from_ms: int, to_ms: int, rows_max: int) -> None:
        unread_ms = self._unread_ms.get(job_id, to_ms)
        while unread_ms >= from_ms:
            if self._read >= ROWS_READ_MAX or len(self._waiting[job_id]) >= rows_max:
                self.known_from_ms, self.short = max(self.known_from_ms, unread_ms + 1), True
                break
            rows = await self._history.list_runs(self._tenant_id, job_id, self._from_ms, unread_ms, self._rows)
            self._read += len(rows)
            whole = len(rows) < self._rows
            unread_ms = self._from_ms - 1 if whole else rows[-1].scheduled_at_ms - 1
            self._waiting[job_id].extend(row for row in rows if self._states is None or row.state in self._states)
        self._unread_ms[job_id] = unread_ms
