"""The URL table: every call of the API on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from api import (
    dead_letters,
    docs,
    health,
    job_list,
    job_verbs,
    jobs,
    operator_brakes,
    operators,
    run_verbs,
    runs,
    signing_secrets,
    work,
)
from api.batch import batch
from api.clock_change_list import list_clock_changes
from api.cron_preview import preview_cron
from api.endpoint import Endpoint, Handler, OpenEndpoint, OperatorEndpoint, WorkEndpoint, respond
from api.errors import BAD_REQUEST, NOT_FOUND, Problem, invalid
from api.forecast import forecast
from api.job_patch import patch_job
from api.names import name_faults
from api.service import Service
from api.stats import job_stats
from api.usage import usage


def routes(service: Service) -> list[BaseRoute]:
    """The hottest first: they are tried in this order."""

    def at(path: str, *, full_only: bool = False, reads: bool = False, **handlers: Handler) -> Route:
        return Route(path, Endpoint(service, handlers, full_only=full_only, reads=reads))

    def worked(path: str, handler: Handler) -> Route:
        return Route(path, WorkEndpoint(service, {"POST": handler}))

    return [
        worked("/v1/work/{token:name}:complete", work.complete),
        worked("/v1/work:claim", work.claim),
        worked("/v1/work:complete", work.complete_some),
        worked("/v1/work/{token:name}:heartbeat", work.heartbeat),
        worked("/v1/work/{token:name}:fail", work.fail),
        worked("/v1/work/{token:name}:release", work.release),
        at("/v1/jobs/{name:name}", GET=jobs.get_job, PUT=jobs.put_job, PATCH=patch_job, DELETE=jobs.delete_job_by_name),
        at("/v1/jobs", GET=job_list.list_jobs),
        at("/v1/jobs:batch", POST=batch),
        at("/v1/jobs/{name:name}/runs", GET=runs.list_runs),
        at("/v1/jobs/{name:name}/stats", GET=job_stats),
        at("/v1/jobs/{name:name}/runs/{scheduled_at}:cancel", POST=run_verbs.cancel),
        at("/v1/jobs/{name:name}/runs/{scheduled_at}:retry", POST=run_verbs.retry),
        at("/v1/jobs/{name:name}/runs/{scheduled_at}", GET=runs.get_run),
        at("/v1/jobs/{name:name}:pause", POST=job_verbs.pause),
        at("/v1/jobs/{name:name}:resume", POST=job_verbs.resume),
        at("/v1/jobs/{name:name}:run", POST=job_verbs.run),
        at("/v1/dead-letters", GET=dead_letters.list_dead_letters),
        at("/v1/dead-letters:retry", POST=dead_letters.retry),
        at("/v1/dead-letters:delete", POST=dead_letters.delete),
        at("/v1/cron:preview", POST=preview_cron, reads=True),
        at("/v1/clock-changes", GET=list_clock_changes),
        at("/v1/forecast", GET=forecast),
        at("/v1/usage", GET=usage),
        at("/v1/signing-secrets", GET=signing_secrets.list_secrets, full_only=True),
        at("/v1/signing-secrets:rotate", POST=signing_secrets.rotate, full_only=True),
        Route("/openapi.json", OpenEndpoint(service, docs.openapi_json)),
        Route("/docs", OpenEndpoint(service, docs.docs)),
        Route("/livez", OpenEndpoint(service, health.livez)),
        Route("/readyz", OpenEndpoint(service, health.readyz)),
    ]


def operator_routes(service: Service) -> list[BaseRoute]:
    """On a listener of their own, for keys of operators."""

    def at(path: str, **handlers: Handler) -> Route:
        return Route(path, OperatorEndpoint(service, handlers))

    tenant = "/admin/v1/tenants/{tenant:name}"
    return [
        at("/admin/v1/tenants", GET=operators.list_tenants, POST=operators.create),
        at(tenant, GET=operators.get_tenant, PATCH=operators.change, DELETE=operators.delete),
        at("/admin/v1/brakes", GET=operator_brakes.list_brakes),
        at("/admin/v1/brakes:pause", POST=operator_brakes.pause_all),
        at("/admin/v1/brakes:resume", POST=operator_brakes.resume_all),
        at("/admin/v1/brakes:block", POST=operator_brakes.block),
        at("/admin/v1/brakes:unblock", POST=operator_brakes.unblock),
        at(f"{tenant}:pause", POST=operator_brakes.pause_one),
        at(f"{tenant}:resume", POST=operator_brakes.resume_one),
        at(f"{tenant}:disable", POST=operators.disable),
        at(f"{tenant}:enable", POST=operators.enable),
        at(f"{tenant}/keys", GET=operators.list_keys, POST=operators.create_key),
        at(f"{tenant}/keys/{{key:name}}:revoke", POST=operators.revoke_key),
        at(f"{tenant}/keys/{{key:name}}:rotate", POST=operators.rotate_key),
        Route("/openapi.json", OpenEndpoint(service, docs.operator_openapi_json)),
        Route("/livez", OpenEndpoint(service, health.livez)),
    ]


class App:
    """The ASGI application of a URL table."""

    def __init__(self, service: Service, table: Sequence[BaseRoute]) -> None:
        self._service = service
        self._router = Router(table, redirect_slashes=False, default=self._not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = decoded_path(scope)
            if path is None:
                await self._refuse(scope, receive, send, Problem(BAD_REQUEST, "the path is not UTF-8"))
                return
            scope["path"] = path
            await self._router(scope, receive, send)

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._refuse(scope, receive, send, _unknown(scope["method"], scope["path"]))

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        async def refuse(request: Request) -> Response:
            raise problem

        await respond(self._service, scope, receive, send, refuse)


def _unknown(method: str, path: str) -> Problem:
    """A name with a colon is no name, and is told the rule; what follows a colon is a verb, for POST alone."""
    name = path.removeprefix("/v1/jobs/").partition("/")[0]
    if path.startswith("/v1/jobs/") and ":" in name and method != "POST":
        return invalid(name_faults(name))
    return Problem(NOT_FOUND, "there is no such URL; /docs lists those there are")


def decoded_path(scope: Scope) -> str | None:
    """The path with its percent escapes decoded, but for an escaped slash, which is part of a name; None if it is no
    text. (A server's own decoding would make two segments of that name.)"""
    raw: bytes | None = scope.get("raw_path")
    if raw is None or b"%" not in raw:
        return str(scope["path"])
    kept = raw.partition(b"?")[0].replace(b"%2F", b"%252F").replace(b"%2f", b"%252F")
    try:
        return unquote_to_bytes(kept).decode()
    except UnicodeDecodeError:
        return None


class _NameConvertor(Convertor[str]):
    """A job's name in a path ends at a slash, or at the colon before a verb."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _NameConvertor())
