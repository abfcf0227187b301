"""The history that the recorder writes and the API reads: connected in the background, again and again until it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from engine.contact import Contact
from engine.errors import HistoryUnavailable, OperatorError
from engine.events import Events
from engine.history.schema import check_history
from engine.history.session import HistorySession, connect
from engine.history.times import DAY_MS, month_of, months
from engine.history.write import write_runs
from engine.rows import AttemptRow, EndRow, FinishedRun, PastRun, Report, RunRow, merge_attempts

RETRY_S = 1.0
PREPARED = ("record_run", "list_runs", "list_ends", "read_run")


class History:
    """``start`` before the first use, ``stop`` after the last. Everything raises HistoryUnavailable while Cassandra is
    away."""

    def __init__(self, contact: Contact, retention_days: int, events: Events) -> None:
        self._contact = contact
        self._retention_days = retention_days
        self._events = events
        self._session: HistorySession | None = None
        self._why = "not connected yet"
        self._unwritten = 0
        self._connecting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def connect(self, seconds_max: float) -> None:
        """As ``start``, and returns once it is connected; HistoryUnavailable with the reason if it is not by then."""
        self.start()
        assert self._connecting is not None  # noqa: S101 - just started
        await asyncio.wait([self._connecting], timeout=seconds_max)
        self._connected()

    async def stop(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._session is not None:
            await asyncio.to_thread(self._session.close)
            self._session = None

    @property
    def connected(self) -> bool:
        """Whether it ever was; nodes may be away all the same."""
        return self._session is not None

    @property
    def losses(self) -> int:
        """How often a node went away or a write was not acknowledged: what was acknowledged shortly before may be lost
        with the part of a commit log that was not on disk yet."""
        return self._unwritten + (self._session.losses.count if self._session else 0)

    def kept_from_ms(self, now_ms: int) -> int:
        """From this scheduled time on nothing has gone: a row's time begins to run when it is written, which is a day
        after its run at the earliest."""
        return now_ms - (self._retention_days + 1) * DAY_MS

    async def write(self, runs: Sequence[FinishedRun]) -> None:
        """Returns once all of them are acknowledged; safe to repeat."""
        await self._write(runs)

    async def write_again(self, runs: Sequence[FinishedRun]) -> None:
        """Runs that ended once more after they were written: over what stands there, their earlier attempts kept."""
        whole = []
        for run in runs:
            earlier = await self.read_run(run.tenant_id, [run.run.job_id], run.run.scheduled_at_ms)
            attempts = merge_attempts(earlier.attempts if earlier else (), run.attempts)
            whole.append(run._replace(attempts=attempts))
        await self._write(whole, again=True)

    async def list_runs(
        self, tenant_id: int, job_id: int, from_ms: int, to_ms: int, rows_max: int
    ) -> list[RunRow]:
        """Runs of one job with scheduled times in [from, to], the newest first; a query for each month."""
        return [RunRow(*row) for row in await self._list("list_runs", tenant_id, job_id, from_ms, to_ms, rows_max)]

    async def list_ends(
        self, tenant_id: int, job_id: int, from_ms: int, to_ms: int, rows_max: int
    ) -> list[EndRow]:
        """How those runs ended."""
        return [EndRow(*row) for row in await self._list("list_ends", tenant_id, job_id, from_ms, to_ms, rows_max)]

    async def read_run(
        self, tenant_id: int, job_ids: Sequence[int], scheduled_at_ms: int
    ) -> PastRun | None:
        """The run of the first of these jobs that had one at this time."""
        session = self._connected()
        for job_id in job_ids:
            values = (tenant_id, job_id, month_of(scheduled_at_ms), scheduled_at_ms)
            for *run, attempts, report in await session.query("read_run", values):
                failed = [AttemptRow(*attempt) for attempt in attempts or ()]
                return PastRun(RunRow(*run), failed, Report(*report) if report else None)
        return None

    async def _list(
        self, name: str, tenant_id: int, job_id: int, from_ms: int, to_ms: int, rows_max: int
    ) -> list[Any]:
        session, rows = self._connected(), list[Any]()
        for month in months(from_ms, to_ms):
            rows += await session.query(name, (tenant_id, job_id, month, from_ms, to_ms, rows_max - len(rows)))
            if len(rows) >= rows_max:
                break
        return rows

    async def _write(self, runs: Sequence[FinishedRun], again: bool = False) -> None:
        try:
            await write_runs(self._connected(), runs, again=again)
        except HistoryUnavailable:
            self._unwritten += 1
            raise

    def _connected(self) -> HistorySession:
        if self._session is None:
            raise HistoryUnavailable(self._why)
        return self._session

    async def _connect(self) -> None:
        while True:
            try:
                self._session = await asyncio.to_thread(self._open)
                self._events.emit("history.connected", contact=str(self._contact))
                return
            except (HistoryUnavailable, OperatorError) as error:
                if self._why != str(error):
                    self._why = str(error)
                    self._events.emit("history.unavailable", error=self._why)
                await asyncio.sleep(RETRY_S)

    def _open(self) -> HistorySession:
        session = connect(self._contact)
        try:
            check_history(session, self._contact, None, self._retention_days)
            session.prepare(*PREPARED)
        except BaseException:
            session.close()
            raise
        return session
