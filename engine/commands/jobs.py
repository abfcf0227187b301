"""`secondzero jobs`: a tenant's jobs, one by one or as a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.commands.administration import report, table
from engine.commands.crontab_file import read_crontab
from engine.commands.jobs_apply import Plan, apply_plan, make_plan
from engine.commands.jobs_file import dump_jobs, read_jobs, read_one_job
from engine.commands.tenant_api import add_verb, api_of, job_path
from engine.settings import SettingsError

LIST_MAX = 1_000


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("jobs", help="a tenant's jobs: put, list, pause, apply a file", allow_abbrev=False)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _add_put(verbs)
    for verb, run, text in (
        ("get", run_get, "show a job"),
        ("delete", run_delete, "delete a job"),
        ("run", run_run, "start a run of a job now"),
    ):
        add_verb(verbs, verb, run, text).add_argument("name")
    _add_list(verbs)
    pause = add_verb(verbs, "pause", run_pause, "pause a job")
    pause.add_argument("name")
    pause.add_argument("--note", help="why; shown with the job")
    resume = add_verb(verbs, "resume", run_resume, "resume a job")
    resume.add_argument("name")
    resume.add_argument("--missed-runs", help="latest, all or skip: for this once, instead of the job's own")
    apply = add_verb(verbs, "apply", run_apply, "make the jobs what a file says, and say what changes")
    apply.add_argument("-f", "--file", type=Path, required=True, help="YAML or JSON: {jobs: {NAME: {schedule: …}}}")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")
    apply.add_argument("--prune", action="store_true", help="delete jobs that the file does not name")
    apply.add_argument("--name-prefix", default="", help="prune only jobs whose names begin so")
    crontab = add_verb(verbs, "import-crontab", run_import, "make a jobs file of a crontab, and say what becomes of it")
    crontab.add_argument("crontab", type=Path, metavar="FILE")
    crontab.add_argument("-o", "--output", type=Path, help="the jobs file to write; absent: standard output")
    crontab.add_argument("--url", help="what to call; {name} stands for the job's name; the command becomes the body")
    crontab.add_argument("--system", action="store_true", help="the sixth field is a user, as in /etc/crontab")
    crontab.add_argument("--tz", default="UTC", help="the time zone of the machine that it comes from (UTC)")


def run_put(args: argparse.Namespace) -> int:
    job = read_one_job(args.file) if args.file else _job_of_flags(args)
    return _report_job(args, api_of().call("PUT", job_path(args.name), job))


def run_get(args: argparse.Namespace) -> int:
    return _report_job(args, api_of().call("GET", job_path(args.name)))


def run_delete(args: argparse.Namespace) -> int:
    return _report_job(args, api_of().call("DELETE", job_path(args.name)))


def run_run(args: argparse.Namespace) -> int:
    return report(args, api_of().call("POST", job_path(args.name) + ":run", {}))


def run_pause(args: argparse.Namespace) -> int:
    body = {} if args.note is None else {"note": args.note}
    return _report_job(args, api_of().call("POST", job_path(args.name) + ":pause", body))


def run_resume(args: argparse.Namespace) -> int:
    body = {} if args.missed_runs is None else {"missed_runs": args.missed_runs}
    return _report_job(args, api_of().call("POST", job_path(args.name) + ":resume", body))


def run_list(args: argparse.Namespace) -> int:
    query = {"state": args.state, "label": args.label, "name_prefix": args.name_prefix}
    jobs = api_of().pages("/v1/jobs", "jobs", query, args.limit)
    rows = [(job["name"], job["state"], _when(job), job["next_run_at"], _what(job)) for job in jobs]
    return report(args, {"jobs": jobs}, table(("name", "state", "when", "next run", "calls"), rows))


def run_apply(args: argparse.Namespace) -> int:
    api = api_of()
    plan = make_plan(api, read_jobs(args.file), args.prune, args.name_prefix)
    if not args.dry_run:
        apply_plan(api, plan)
    return report(args, {"applied": not args.dry_run, **plan.document()}, _plan_lines(plan, args.dry_run))


def run_import(args: argparse.Namespace) -> int:
    found = read_crontab(args.crontab, system=args.system, time_zone=args.tz, url=args.url)
    text = dump_jobs(found.jobs)
    if args.output:
        args.output.write_text(text)
    notes = [
        f"line {line.number}: {line.text}\n" + "\n".join(f"  {note}" for note in line.notes) for line in found.lines
    ]
    if args.json:
        lines = [{"line": line.number, "text": line.text, "job": line.job, "notes": line.notes} for line in found.lines]
        return report(args, {"jobs": found.jobs, "lines": lines})
    print("\n".join(notes), file=sys.stdout if args.output else sys.stderr)
    if not args.output:
        print(text, end="")
    return 0


def _add_put(verbs: argparse._SubParsersAction[Any]) -> None:
    put = add_verb(verbs, "put", run_put, "create or edit a job")
    put.add_argument("name")
    put.add_argument("-f", "--file", type=Path, help="the whole job, as YAML or JSON; - is standard input")
    put.add_argument("--cron", help="when: a cron expression")
    put.add_argument("--tz", help="the time zone of --cron (UTC)")
    put.add_argument("--at", help="when: once, at this time (RFC 3339)")
    put.add_argument("--url", help="what to call")
    put.add_argument("--method", help="(POST)")
    put.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    put.add_argument("--body", help="sent as it is")
    put.add_argument("--label", action="append", default=[], metavar="NAME:VALUE")
    for name in ("priority", "timeout", "overlap", "missed-runs", "description"):
        put.add_argument(f"--{name}")


def _add_list(verbs: argparse._SubParsersAction[Any]) -> None:
    every = add_verb(verbs, "list", run_list, "list jobs in name order")
    every.add_argument("--state", help="active, paused, finished or invalid")
    every.add_argument("--label", action="append", default=[], metavar="NAME:VALUE")
    every.add_argument("--name-prefix")
    every.add_argument("--limit", type=int, default=LIST_MAX, help=f"at most so many ({LIST_MAX})")


def _job_of_flags(args: argparse.Namespace) -> dict[str, Any]:
    problems = [] if args.url else ["--url: what is to be called?"]
    if bool(args.cron) == bool(args.at):
        problems.append("--cron or --at: exactly one of them says when")
    http: dict[str, Any] = {"url": args.url, "method": args.method, "body": args.body}
    http["headers"] = _pairs("--header", args.header, problems)
    job: dict[str, Any] = {
        "schedule": {"run_at": args.at} if args.at else {"cron": args.cron, "time_zone": args.tz or "UTC"},
        "target": {"http": {name: value for name, value in http.items() if value}},
        "labels": _pairs("--label", args.label, problems),
    }
    for name in ("priority", "timeout", "overlap", "missed_runs", "description"):
        if getattr(args, name) is not None:
            job[name] = getattr(args, name)
    if problems:
        raise SettingsError(problems)
    return job


def _pairs(flag: str, texts: list[str], problems: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            problems.append(f"{flag}: {text!r} is not NAME:VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _report_job(args: argparse.Namespace, job: dict[str, Any]) -> int:
    lines = [
        f"{job['name']}: {job['state']}, {_when(job)}, calls {_what(job)}",
        f"next run: {job['next_run_at'] or 'none'}",
    ]
    lines += [f"clock change: {change['detail']}" for change in job.get("clock_changes", [])]
    return report(args, job, lines)


def _when(job: dict[str, Any]) -> str:
    schedule = job["schedule"]
    return f"at {schedule['run_at']}" if "run_at" in schedule else f"{schedule['cron']} {schedule['time_zone']}"


def _what(job: dict[str, Any]) -> str:
    target = job["target"]
    http = target.get("http")
    return f"{http['method']} {http['url']}" if http else f"function {target['function']['name']}"


def _plan_lines(plan: Plan, dry_run: bool) -> list[str]:
    lines = [f"+ {name}" for name in plan.created]
    lines += [f"~ {name}: {', '.join(fields)}" for name, fields in plan.changed.items()]
    lines += [f"- {name}" for name in plan.deleted]
    counts = f"{len(plan.created)} created, {len(plan.changed)} changed, {len(plan.deleted)} deleted"
    return [*lines, f"{'would be: ' if dry_run else ''}{counts}, {len(plan.same)} the same"]
