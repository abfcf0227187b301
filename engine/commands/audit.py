"""`secondzero audit`: recomputes every scheduled time of a period and checks that each has exactly one outcome."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from engine.commands.audit_past import PastRuns, add_past
from engine.config import Dsn, Settings
from engine.errors import CallerError, OperatorError
from engine.events import Events
from engine.history.check import check_apart
from engine.local.folder import stores_of
from engine.model import JobState, job_id_text
from engine.rules.audit import Finding, Tally, Wrong, audit_job
from engine.rules.timestamps import format_time, parse_time
from engine.settings import SettingsError, load_settings, settings_arguments, with_history
from engine.store.audit import JobRecord, read_floor, read_records
from engine.store.fleet import FleetRow, read_fleet
from engine.store.shard import Shard

# More are counted, not listed: whoever has so many looks for one cause.
LISTED_MAX = 1_000
LINES_MAX = 50

CONNECT_S_MAX = 30


class Found(NamedTuple):
    """A finding with its job."""

    job: JobRecord
    finding: Finding


@dataclass(slots=True)
class Audit:
    """The sum over all shards of a period, both ends included. ``invalid``: jobs whose schedule nobody can evaluate."""

    from_ms: int
    until_ms: int
    jobs: int = 0
    invalid: int = 0
    tally: Tally = field(default_factory=Tally)
    wrong: Counter[Wrong] = field(default_factory=Counter)
    listed: list[Found] = field(default_factory=list)

    @property
    def flawless(self) -> bool:
        return not self.wrong

    def add(self, job: JobRecord, tally: Tally, findings: Sequence[Finding]) -> None:
        self.jobs += 1
        self.tally.add(tally)
        self.wrong.update(finding.wrong for finding in findings)
        room = LISTED_MAX - len(self.listed)
        self.listed += [Found(job, finding) for finding in findings[:room]]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="check that every scheduled time of a period has exactly one outcome",
        description="Recomputes every scheduled time of a period from the jobs' own versions and holds it against runs"
        " and skipped ranges, in Cassandra too where the history is there. Exit status 1 where one is missing, double,"
        " early or unexpected. Changes nothing.",
        allow_abbrev=False,
    )
    settings_arguments(parser, {"shards", "data", "history", "times"})
    parser.add_argument("--from", dest="from_text", metavar="T", required=True, help="the first time, RFC 3339")
    parser.add_argument("--to", dest="to_text", metavar="T", help="the last time, not in the future (now)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    from_ms, until_ms = _time(args.from_text, "--from"), _time(args.to_text, "--to")
    result = _audit_stores(stores_of(settings), from_ms or 0, until_ms)
    if args.json:
        print(orjson.dumps(document(result)).decode())
    else:
        print("\n".join(lines(result)))
    return 0 if result.flawless else 1


def _audit_stores(settings: Settings, from_ms: int, until_ms: int | None) -> Audit:
    """OperatorError where the history is in Cassandra and does not answer: without it all there would be missing."""
    fleet = asyncio.run(_fleet(settings.shards[0]))
    settings = with_history(settings, fleet.history if fleet else None)
    if settings.history != "cassandra":
        return asyncio.run(audit(settings.shards, from_ms, until_ms, settings.freeze_ms))
    away = check_apart(settings, fleet.fleet_id if fleet else None)
    if away:
        raise OperatorError(f"without the history nothing can be said of what is there: {away}")
    return asyncio.run(_with_history(settings, from_ms, until_ms))


async def _fleet(dsn: Dsn) -> FleetRow | None:
    shard = Shard(dsn, 0)
    try:
        return await read_fleet(shard)
    finally:
        await shard.close()


async def _with_history(settings: Settings, from_ms: int, until_ms: int | None) -> Audit:
    from engine.history.history import History  # the driver is loaded where there is a Cassandra

    assert settings.cassandra  # noqa: S101 - with_history has seen to it
    history = History(settings.cassandra, settings.retention_days, Events())
    try:
        await history.connect(CONNECT_S_MAX)
        return await audit(settings.shards, from_ms, until_ms, settings.freeze_ms, history)
    finally:
        await history.stop()


async def audit(
    dsns: Sequence[Dsn], from_ms: int, until_ms: int | None, freeze_ms: int, history: PastRuns | None = None
) -> Audit:
    """Audit all shards. Up to now where no end is given; from the floor on, below which nothing is kept, or as far back
    as the history keeps what has left."""
    shards = [Shard(dsn, index) for index, dsn in enumerate(dsns)]
    try:
        now_ms = min([await shard.now_ms() for shard in shards])
        if until_ms is not None and until_ms > now_ms:
            raise SettingsError([f"--to: {format_time(until_ms)} is yet to come, now is {format_time(now_ms)}"])
        kept_ms = history.kept_from_ms(now_ms) if history else max([await read_floor(shard) for shard in shards])
        result = Audit(max(from_ms, kept_ms), now_ms if until_ms is None else until_ms)
        await asyncio.gather(*(_audit_shard(shard, result, freeze_ms, history) for shard in shards))
        result.listed.sort(key=lambda found: found.finding.scheduled_at_ms)
        return result
    finally:
        for shard in shards:
            await shard.close()


async def _audit_shard(shard: Shard, result: Audit, freeze_ms: int, history: PastRuns | None) -> None:
    for (partition_id,) in (await shard.execute("placed_partitions")).rows:
        async for page in read_records(shard, partition_id, result.from_ms, result.until_ms):
            if history is not None:
                # Asked behind MySQL: what has left it by now stands there, and lies below the floor of now.
                until_ms = min(result.until_ms, await read_floor(shard) - 1)
                await add_past(history, page, result.from_ms, until_ms)
            for job in page:
                _audit_one(job, result, freeze_ms)


def _audit_one(job: JobRecord, result: Audit, freeze_ms: int) -> None:
    judged = _judged(job, result, freeze_ms) if job.readable else None
    if judged is None:
        result.jobs += 1
        result.invalid += 1
    else:
        result.add(job, *judged)


def _judged(job: JobRecord, result: Audit, freeze_ms: int) -> tuple[Tally, list[Finding]] | None:
    try:
        return audit_job(
            job.versions,
            job.cursor,
            job.runs,
            job.skips,
            from_ms=result.from_ms,
            until_ms=result.until_ms,
            freeze_ms=freeze_ms,
        )
    except CallerError:  # a zone that is gone
        return None


def document(result: Audit) -> dict[str, Any]:
    """The report as JSON; ``findings`` are the first LISTED_MAX."""
    tally = result.tally
    return {
        "from": format_time(result.from_ms),
        "to": format_time(result.until_ms),
        "jobs": result.jobs,
        "times": tally.times,
        "outcomes": {state.name.lower(): tally.outcomes[state] for state in sorted(tally.outcomes)},
        "skipped_ranges": {reason.name.lower(): tally.skipped[reason] for reason in sorted(tally.skipped)},
        "open": tally.open,
        "unplanned": tally.undecided[JobState.ACTIVE],
        "paused": tally.undecided[JobState.PAUSED],
        "invalid": tally.undecided[JobState.INVALID],
        "invalid_jobs": result.invalid,
        "manual": {state.name.lower(): tally.manual[state] for state in sorted(tally.manual)},
        **{wrong.value: result.wrong[wrong] for wrong in Wrong},
        "findings": [_finding_document(found) for found in result.listed],
    }


def lines(result: Audit) -> Iterator[str]:
    """The report for people."""
    tally = result.tally
    yield f"audited     {format_time(result.from_ms)} to {format_time(result.until_ms)} · {result.jobs:,} jobs"
    yield f"times       {tally.times:,} scheduled: {_counts(tally.outcomes)}"
    yield f"no run      {_counts(tally.skipped)}"
    yield (
        f"to come     {tally.open:,} open · {tally.undecided[JobState.ACTIVE]:,} not yet planned"
        f" · {tally.undecided[JobState.PAUSED]:,} in a pause · {tally.undecided[JobState.INVALID]:,} of invalid jobs"
    )
    yield f"by hand     {_counts(tally.manual)}"
    if result.invalid:
        yield f"not audited {result.invalid:,} jobs whose schedule cannot be evaluated"
    yield "wrong       " + " · ".join(f"{result.wrong[wrong]:,} {wrong}" for wrong in Wrong)
    for found in result.listed[:LINES_MAX]:
        shown = _finding_document(found)
        yield f"  {shown['wrong']:10} {shown['scheduled_at']}  {shown['job'] or 'a removed job'} ({shown['job_id']})"
    if sum(result.wrong.values()) > LINES_MAX:
        yield f"  … and {sum(result.wrong.values()) - LINES_MAX:,} more"


def _finding_document(found: Found) -> dict[str, Any]:
    return {
        "wrong": found.finding.wrong.value,
        "scheduled_at": format_time(found.finding.scheduled_at_ms),
        "tenant_id": found.job.tenant_id,
        "job": found.job.name,
        "job_id": job_id_text(found.job.job_id),
    }


def _counts(counts: Mapping[Any, int]) -> str:
    return " · ".join(f"{counts[key]:,} {key.name.lower()}" for key in sorted(counts)) or "none"


def _time(text: str | None, flag: str) -> int | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise SettingsError([f"{flag}: {text!r} {error}"]) from error
