"""Applying a jobs file: a plan of what would change, then the changes in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from api.definitions import read_job, show_definition
from api.job_reading import JobReading
from engine.commands.tenant_api import Api
from engine.errors import OperatorError

_SHOWN_ONLY = frozenset(
    {"name", "job_id", "version", "state", "note", "paused", "next_run_at", "created_at", "updated_at"}
)

ITEMS_PER_CALL = 200
BYTES_PER_CALL = 4 << 20
SECRETS_AGAIN = "secret headers (sent again: what is stored cannot be compared)"


@dataclass(slots=True)
class Plan:
    """What a file makes of the jobs that are there."""

    puts: dict[str, Any] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {"created": self.created, "changed": self.changed, "deleted": self.deleted, "same": self.same}


def make_plan(api: Api, wanted: Mapping[str, Any], prune: bool, name_prefix: str) -> Plan:
    """Compare a file with the jobs that are there; ``prune`` plans to delete the others that begin with the prefix."""
    there = {job["name"]: job for job in api.pages("/v1/jobs", "jobs", {}, None)}
    plan = Plan()
    for name, job in wanted.items():
        _enter(plan, name, job, there.get(name))
    if prune:
        plan.deleted = [name for name in there if name not in wanted and name.startswith(name_prefix)]
    return plan


def apply_plan(api: Api, plan: Plan) -> None:
    """Carry out a plan; OperatorError lists every item that was refused, the others are done."""
    problems = []
    for body in _batches(plan):
        for result in api.call("POST", "/v1/jobs:batch", body)["results"]:
            if result["status"] >= 400 and not (result["name"] in plan.deleted and result["status"] == 404):
                problems += _problem_lines(result)
    if problems:
        raise OperatorError("\n".join(problems))


def _enter(plan: Plan, name: str, job: Any, there: Mapping[str, Any] | None) -> None:
    if there is None:
        plan.created.append(name)
        plan.puts[name] = job
        return
    fields = changed_fields(job, there)
    if not fields:
        plan.same.append(name)
        return
    plan.changed[name] = fields
    plan.puts[name] = job


def changed_fields(job: Any, there: Mapping[str, Any]) -> list[str]:
    """The fields in which a job of the file differs from the one that is there, defaults filled in."""
    shown = _as_answered(job)
    if shown is None:
        return ["unreadable here: the service will say what is wrong"]
    stored = {name: value for name, value in there.items() if name not in _SHOWN_ONLY}
    has_secrets = _hide_fingerprints(shown)
    _hide_fingerprints(stored)
    fields = [name for name in sorted({*shown, *stored}) if shown.get(name) != stored.get(name)]
    fields += [SECRETS_AGAIN] if has_secrets else []
    if "paused" in job and job["paused"] != there["paused"]:
        fields.append("paused")
    return fields


def _as_answered(job: Any) -> dict[str, Any] | None:
    """The job as the API would answer it. Whether a time is past or too far ahead is the service's to say."""
    written = read_job(job, JobReading(0, any_time=True))
    return None if written is None else show_definition(written.definition, str)


def _hide_fingerprints(shown: dict[str, Any]) -> bool:
    """Takes the secret headers' fingerprints away; True if there were any."""
    http = shown["target"].get("http", {})
    secret = [name for name, value in http.get("headers", {}).items() if isinstance(value, dict)]
    if secret:
        headers = http["headers"] | {name: {"secret": True} for name in secret}
        shown["target"] = {"http": http | {"headers": headers}}
    return bool(secret)


def _batches(plan: Plan) -> Iterator[dict[str, Any]]:
    puts: list[dict[str, Any]] = []
    size = 0
    for name, job in plan.puts.items():
        item = {"name": name, "job": job}
        size += len(orjson.dumps(item))
        if puts and (len(puts) == ITEMS_PER_CALL or size > BYTES_PER_CALL):
            yield {"puts": puts}
            puts, size = [], len(orjson.dumps(item))
        puts.append(item)
    if puts:
        yield {"puts": puts}
    for start in range(0, len(plan.deleted), ITEMS_PER_CALL):
        yield {"deletes": plan.deleted[start : start + ITEMS_PER_CALL]}


def _problem_lines(result: Mapping[str, Any]) -> list[str]:
    problem = result["problem"]
    faults = problem.get("errors") or [{"pointer": "", "detail": problem["detail"]}]
    return [f"{result['name']}: {fault['pointer']} {fault['detail']}".replace(":  ", ": ") for fault in faults]
