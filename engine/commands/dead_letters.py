"""`secondzero dead-letters`: runs that have failed for good."""

from __future__ import annotations

import argparse
from typing import Any

from engine.commands.administration import report
from engine.commands.runs import run_lines
from engine.commands.tenant_api import add_verb, api_of

LIST_MAX = 100


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "dead-letters", help="runs that have failed for good: list, retry, delete", allow_abbrev=False
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    every = add_verb(verbs, "list", run_list, "list them, the newest first")
    every.add_argument("--limit", type=int, default=LIST_MAX, help=f"at most so many ({LIST_MAX})")
    retry = add_verb(verbs, "retry", run_retry, "retry all that the filter finds")
    delete = add_verb(verbs, "delete", run_delete, "forget all that the filter finds")
    for verb in (every, retry, delete):
        verb.add_argument("--job", help="of this job only")
        verb.add_argument("--name-prefix", help="of jobs whose names begin so")
        verb.add_argument("--from", dest="scheduled_from", metavar="TIME", help="scheduled then or later")
        verb.add_argument("--to", dest="scheduled_to", metavar="TIME", help="scheduled then or earlier")
    for verb in (retry, delete):
        verb.add_argument("--dry-run", action="store_true", help="only count")


def run_list(args: argparse.Namespace) -> int:
    letters = api_of().pages("/v1/dead-letters", "dead_letters", _filter(args), args.limit)
    return report(args, {"dead_letters": letters}, run_lines(letters, job=True))


def run_retry(args: argparse.Namespace) -> int:
    return _act(args, "retry")


def run_delete(args: argparse.Namespace) -> int:
    return _act(args, "delete")


def _act(args: argparse.Namespace, verb: str) -> int:
    """Call by call, until nothing is left that the filter finds."""
    api, body = api_of(), {**_filter(args), "dry_run": args.dry_run}
    count = 0
    while True:
        done = api.call("POST", f"/v1/dead-letters:{verb}", body)
        count += done["count"]
        if args.dry_run or not done["more"] or not done["count"]:
            return report(args, {"count": count, "more": done["more"]})


def _filter(args: argparse.Namespace) -> dict[str, Any]:
    names = ("job", "name_prefix", "scheduled_from", "scheduled_to")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
