"""`secondzero runs export`: a job's runs of a period, page after page from the API, as lines for other programs."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from engine.commands.administration import report
from engine.commands.tenant_api import Api, add_verb, api_of, job_path
from engine.errors import OperatorError
from engine.settings import SettingsError

PAGE_RUNS = 1_000
TELL_EVERY_PAGES = 10

COLUMNS = (
    *("job", "job_id", "scheduled_at", "state", "reason", "trigger", "started_at", "finished_at", "lag_ms"),
    *("attempts", "outcome", "status_code", "job_version", "clock_change", "skipped_from", "skipped"),
)

Run = Mapping[str, Any]


class Exported(NamedTuple):
    """How many runs were written, and what the API said of its own answer."""

    runs: int
    warnings: list[str]


def add_export(verbs: argparse._SubParsersAction[Any]) -> None:
    export = add_verb(verbs, "export", run_export, "write a job's runs of a period as lines, the newest first")
    export.add_argument("--job", required=True, metavar="NAME")
    export.add_argument("--from", dest="scheduled_from", metavar="TIME", help="scheduled then or later")
    export.add_argument("--to", dest="scheduled_to", metavar="TIME", help="scheduled then or earlier")
    export.add_argument("--state", help="pending, running, succeeded, failed, cancelled or skipped")
    export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="(jsonl)")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="instead of standard output")
    export.add_argument(
        "--resume", metavar="TOKEN", help="go on where an export that failed said so; the file is appended to"
    )


def run_export(args: argparse.Namespace) -> int:
    if args.json and not args.output:
        raise SettingsError(["--json: needs --output, since standard output has the runs"])
    with _opened(args) as file:
        exported = _export(args, file, api_of())
    if exported.warnings:
        raise OperatorError("\n".join(f"not all of it: {warning}" for warning in exported.warnings))
    _tell(f"{exported.runs:,} runs")
    return report(args, {"runs": exported.runs, "file": str(args.output)}) if args.output else 0


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[IO[str]]:
    if not args.output:
        yield sys.stdout
        return
    try:
        with args.output.open("a" if args.resume else "w", newline="") as file:
            yield file
    except OSError as error:
        raise OperatorError(f"{args.output}: {error.strerror}") from error


def _export(args: argparse.Namespace, file: IO[str], api: Api) -> Exported:
    write = _writer(args, file)
    runs, warnings = 0, dict[str, None]()
    for number, page in enumerate(_pages(args, api), start=1):
        for run in page["runs"]:
            write(run)
        file.flush()
        runs += len(page["runs"])
        warnings |= dict.fromkeys(page.get("warnings", []))
        if number % TELL_EVERY_PAGES == 0 and page["runs"]:
            _tell(f"{runs:,} runs, down to {page['runs'][-1]['scheduled_at']}")
    return Exported(runs, list(warnings))


def _pages(args: argparse.Namespace, api: Api) -> Iterator[Mapping[str, Any]]:
    """What was written when a page fails is whole pages, so the next one is where to go on."""
    query = {"state": args.state, "scheduled_from": args.scheduled_from, "scheduled_to": args.scheduled_to}
    token = args.resume
    while True:
        try:
            page = api.call(
                "GET", job_path(args.job, "runs"), query={**query, "page_size": PAGE_RUNS, "page_token": token}
            )
        except OperatorError as error:
            raise OperatorError(f"{error}\nto go on: --resume {token}" if token else str(error)) from error
        yield page
        token = page.get("next_page_token")
        if token is None:
            return


def _writer(args: argparse.Namespace, file: IO[str]) -> Callable[[Run], object]:
    if args.format == "jsonl":
        return lambda run: file.write(orjson.dumps(run).decode() + "\n")
    table = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
    if not args.resume:
        table.writeheader()
    return table.writerow


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
