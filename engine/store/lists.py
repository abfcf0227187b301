"""Pages of a tenant's jobs, one shard at a time, and of a job's runs. Each reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.model import Definition, JobState, RunState, Trigger
from engine.rows import AttemptRow, RunRow
from engine.store.shard import Shard
from engine.store.statements import Value

# A page that has read so many rows answers short instead of reading on.
ROWS_READ_MAX = 10_000

# Above every name: names have letters, digits, dots, underscores and hyphens.
AFTER_EVERY_NAME = "~"


class JobFilter(NamedTuple):
    """What a list of jobs is narrowed to; all that is given must hold. ``finished`` splits the active ones."""

    state: JobState | None = None
    finished: bool | None = None
    name_prefix: str = ""
    next_before_ms: int | None = None
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def admits_all(self) -> bool:
        """Whether every row in the range of names is answered."""
        return self.state is None and self.next_before_ms is None and len(self.labels) < 2


class NamePage(NamedTuple):
    """Names in order, each with (partition_id, job_id). ``read_to`` is set where the shard has read enough: what comes
    after that name is not known."""

    names: list[tuple[str, int, int]]
    read_to: str | None


async def job_names(
    shard: Shard, tenant_id: int, after: str, wanted: JobFilter, rows_max: int, now_ms: int
) -> NamePage:
    """At most ``rows_max`` names of one shard after a name."""
    scan_max = rows_max if wanted.admits_all else max(rows_max, ROWS_READ_MAX)
    values = _values(tenant_id, after, wanted) | {
        "scan_max": scan_max,
        "rows_max": rows_max,
        "now_ms": now_ms,
    }
    prefix = "labelled_" if wanted.labels else ""
    async with shard.connection() as connection:
        answer = await connection.execute(f"{prefix}job_names", values)
        names = [(row[0], row[1], row[2]) for row in answer.rows]
        if wanted.admits_all or len(names) == rows_max:
            return NamePage(names, names[-1][0] if len(names) == rows_max else None)
        last = await connection.execute(f"{prefix}job_name_at", values | {"skipped": scan_max - 1})
        return NamePage(names, last.rows[0][0] if last.rows else None)


async def count_jobs(shard: Shard, tenant_id: int) -> int:
    """How many living jobs a tenant has on one shard."""
    return int((await shard.execute("count_jobs", {"tenant_id": tenant_id})).rows[0][0])


class SkipRow(NamedTuple):
    """A range of scheduled times that got no run, both ends included."""

    from_at_ms: int
    to_at_ms: int
    job_id: int
    skipped: int
    reason: int
    version: int
    written_at_ms: int

    @property
    def run(self) -> RunRow:
        """The run that its last time would have had."""
        return RunRow(
            self.to_at_ms, self.job_id, self.version, RunState.SKIPPED, Trigger.SCHEDULE, 0, 0, self.reason, None, None,
            None, self.written_at_ms, 0,
        )  # fmt: skip


class Named(NamedTuple):
    """One of the jobs that ever had a name."""

    partition_id: int
    job_id: int
    created_at_ms: int
    alive: bool


async def jobs_of_name(shard: Shard, tenant_id: int, name: str) -> list[Named]:
    """Every job that has or had this name, the newest first."""
    answer = await shard.execute("job_ids_of_name", {"tenant_id": tenant_id, "name": name})
    return [Named(row[0], row[1], row[2], row[3] is not None) for row in answer.rows]


async def runs_of_job(
    shard: Shard, job: Named, states: Sequence[int], from_ms: int, to_ms: int, rows_max: int
) -> list[RunRow]:
    """Runs of one job with scheduled times in [from, to], the newest first."""
    answer = await shard.execute(
        "runs_of_job",
        {
            "partition_id": job.partition_id,
            "job_id": job.job_id,
            "states": states,
            "from_at": from_ms,
            "to_at": to_ms,
            "rows_max": rows_max,
        },
    )
    return [RunRow(*row) for row in answer.rows]


async def skips_of_job(shard: Shard, job: Named, from_ms: int, to_ms: int, rows_max: int) -> list[SkipRow]:
    """Skipped ranges of one job that end in [from, to], the newest first."""
    values = {"partition_id": job.partition_id, "job_id": job.job_id, "from_at": from_ms, "to_at": to_ms}
    answer = await shard.execute("skips_of_job", {**values, "rows_max": rows_max})
    return [SkipRow(*row) for row in answer.rows]


async def skip_over(shard: Shard, partition_id: int, scheduled_at_ms: int, job_ids: Sequence[int]) -> SkipRow | None:
    """The skipped range around a time, of the newest of these jobs."""
    values: dict[str, Value] = {"partition_id": partition_id, "scheduled_at": scheduled_at_ms, "job_ids": job_ids}
    answer = await shard.execute("skips_over", values)
    return SkipRow(*answer.rows[0]) if answer.rows else None


async def definitions_of(
    shard: Shard, partition_id: int, versions: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Definition]:
    """The definitions of versions, by (job_id, version)."""
    keys = sorted({(partition_id, *version) for version in versions})
    if not keys:
        return {}
    async with shard.connection() as connection:
        rows = await connection.fetch_rows("read_versions", keys, bytes_max=shard.packet_bytes_max)
    return {(row[1], row[2]): Definition.salvage(row[3]) for row in rows}


async def run_at(
    shard: Shard, partition_id: int, scheduled_at_ms: int, job_ids: Sequence[int]
) -> tuple[RunRow, list[AttemptRow]] | None:
    """The run of the newest of these jobs at one time, with its failed attempts."""
    key: dict[str, int] = {"partition_id": partition_id, "scheduled_at": scheduled_at_ms}
    async with shard.connection() as connection:
        found = await connection.execute("run_by_key", {**key, "job_ids": job_ids})
        if not found.rows:
            return None
        run = RunRow(*found.rows[0])
        attempts = await connection.execute("attempts_of_run", key | {"job_id": run.job_id})
    return run, [AttemptRow(*row) for row in attempts.rows]


def _values(tenant_id: int, after: str, wanted: JobFilter) -> dict[str, Value]:
    values: dict[str, Value] = {
        "tenant_id": tenant_id,
        "after": after,
        "from_name": wanted.name_prefix,
        "to_name": wanted.name_prefix + AFTER_EVERY_NAME,
        "state": wanted.state,
        "finished": wanted.finished,
        "next_before": wanted.next_before_ms,
    }
    if wanted.labels:
        (label, value), *more = wanted.labels
        # A list of pairs must not be empty; the first pair again asks nothing new.
        asked_again = more or [(label, value)]
        values |= {"label": label, "label_value": value, "labels_more": len(more), "more_labels": asked_again}
    return values
