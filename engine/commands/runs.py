"""`secondzero runs`: what became of a job's times."""

from __future__ import annotations

import argparse
from typing import Any

from engine.commands.administration import report, table
from engine.commands.runs_export import add_export
from engine.commands.tenant_api import add_verb, api_of, job_path

LIST_MAX = 100


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("runs", help="a job's runs: list, export, get, cancel, retry", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    every = add_verb(verbs, "list", run_list, "list a job's runs, the newest first")
    every.add_argument("job")
    every.add_argument("--state", help="pending, running, succeeded, failed, cancelled or skipped")
    every.add_argument("--from", dest="scheduled_from", metavar="TIME", help="scheduled then or later")
    every.add_argument("--to", dest="scheduled_to", metavar="TIME", help="scheduled then or earlier")
    every.add_argument("--limit", type=int, default=LIST_MAX, help=f"at most so many ({LIST_MAX})")
    add_export(verbs)
    for verb, run, text in (
        ("get", run_get, "show a run with its attempts"),
        ("cancel", run_cancel, "cancel a run that has not ended"),
        ("retry", run_retry, "retry a run that has failed for good"),
    ):
        one = add_verb(verbs, verb, run, text)
        one.add_argument("job")
        one.add_argument("scheduled_at", metavar="TIME", help="such as 2030-01-31T09:00:00Z")


def run_list(args: argparse.Namespace) -> int:
    query = {"state": args.state, "scheduled_from": args.scheduled_from, "scheduled_to": args.scheduled_to}
    runs = api_of().pages(job_path(args.job, "runs"), "runs", query, args.limit)
    return report(args, {"runs": runs}, run_lines(runs))


def run_get(args: argparse.Namespace) -> int:
    run = api_of().call("GET", job_path(args.job, "runs", args.scheduled_at))
    heads = ("attempt", "started", "finished", "outcome", "status", "detail")
    fields = ("attempt", "started_at", "finished_at", "outcome", "status_code", "detail")
    attempts = [tuple(attempt[name] for name in fields) for attempt in run["attempt_list"]]
    return report(args, run, [*run_lines([run]), "", *table(heads, attempts)])


def run_cancel(args: argparse.Namespace) -> int:
    return _act(args, "cancel")


def run_retry(args: argparse.Namespace) -> int:
    return _act(args, "retry")


def run_lines(runs: list[dict[str, Any]], job: bool = False) -> list[str]:
    """Runs for people, a line each."""
    columns = {"job": "job"} if job else {}
    columns |= {"scheduled": "scheduled_at", "state": "state", "trigger": "trigger", "lag ms": "lag_ms"}
    columns |= {"attempts": "attempts", "status": "status_code", "reason": "reason"}
    return table(list(columns), [[run[name] for name in columns.values()] for run in runs])


def _act(args: argparse.Namespace, verb: str) -> int:
    run = api_of().call("POST", job_path(args.job, "runs", f"{args.scheduled_at}:{verb}"), {})
    return report(args, run, run_lines([run]))
