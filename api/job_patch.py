"""PATCH: a merge patch (RFC 7396) on the job as it is answered, then read like a PUT."""

from __future__ import annotations

from typing import Any

from api.definitions import show_definition
from api.errors import not_found
from api.jobs import ROUNDS_MAX, Terms, busy, edit, find_job, read_written
from api.requests import Call, check_preconditions
from api.responses import Answer, etag_of
from engine.model import Definition
from engine.store.jobs import JobRow

MERGE_PATCH_JSON = "application/merge-patch+json"


async def patch_job(call: Call) -> Answer:
    """PATCH /v1/jobs/{name}"""
    name = call.name()
    patch = await call.json(media_type=MERGE_PATCH_JSON)
    place = call.service.placement.place(call.tenant_id, name)
    for _ in range(ROUNDS_MAX):
        job = await find_job(call, place, name)
        check_preconditions(call.request, etag_of(job.job_id, job.version) if job else None)
        if job is None:
            raise not_found("job")
        written = read_written(call, merged(_shown(call, job), patch), job)
        answer = await edit(call, place, job, written, Terms())
        if answer is not None:
            return answer
    raise busy()


def merged(job: dict[str, Any], patch: Any) -> Any:
    """The job with the patch applied; a schedule or target of another kind replaces the one that is there."""
    if not isinstance(patch, dict):
        return patch
    return merge(_without_other_kinds(job, patch), patch)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def _without_other_kinds(job: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    result = dict(job)
    if _names_another(patch.get("schedule"), job["schedule"], ("run_at", "cron")):
        result["schedule"] = {}
    if _names_another(patch.get("target"), job["target"], ("http", "function")):
        result["target"] = {}
    http = result["target"].get("http")
    patched = patch.get("target")
    patched_http = patched.get("http") if isinstance(patched, dict) else None
    if http is not None and _names_another(patched_http, http, ("body", "body_base64")):
        kept = {name: value for name, value in http.items() if name not in ("body", "body_base64")}
        result["target"] = {"http": kept}
    return result


def _names_another(patch: Any, stored: dict[str, Any], kinds: tuple[str, str]) -> bool:
    """Whether a patch gives one of two kinds where the other is stored."""
    if not isinstance(patch, dict):
        return False
    return any(patch.get(kind) is not None and kind not in stored for kind in kinds)


def _shown(call: Call, job: JobRow) -> dict[str, Any]:
    return show_definition(Definition.salvage(job.definition), call.service.fingerprint(call.tenant_id))
