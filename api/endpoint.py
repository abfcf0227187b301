"""From the handlers of a URL to an ASGI endpoint: method, key and media type are checked once, here."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.auth import authenticate, check_operator, check_scope, check_worker
from api.errors import INTERNAL, METHOD_NOT_ALLOWED, Problem, problem_of
from api.idempotency import one_at_a_time
from api.limits import REQUESTS_LIMIT, limits_of
from api.requests import Call, Incoming, check_acceptable
from api.responses import JSON, Answer, problem_response
from api.service import Service
from engine.keys import KeyMissing
from engine.store.tenants import ApiKey

Handler = Callable[[Call], Awaitable[Answer]]
OpenHandler = Callable[[Service, Request], Awaitable[Response]]

NO_TENANT = 0  # ids begin at 1
REQUEST_ID = "x-request-id"
WORK = "/v1/work/"
# For pages of the origins that the operator allows; they send the key themselves, never a cookie.
ALLOWED_HEADERS = "Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, X-Request-Id"
EXPOSED_HEADERS = "ETag, Retry-After, RateLimit, RateLimit-Policy, X-Request-Id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Endpoint:
    """One URL of the API. ``full_only`` keeps read keys out even of GET, ``reads`` lets them POST."""

    def __init__(
        self, service: Service, handlers: Mapping[str, Handler], *, full_only: bool = False, reads: bool = False
    ) -> None:
        self._service = service
        self.handlers = dict(handlers)
        if "GET" in handlers:
            self.handlers["HEAD"] = handlers["GET"]
        self._allow = ", ".join(sorted({*self.handlers, "OPTIONS"}))
        self._full_only = full_only
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._service, scope, receive, send, self._answer)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": self._allow, **_preflight(request, self._allow)})
        handler = self.handlers.get(request.method)
        if handler is None:
            raise Problem(METHOD_NOT_ALLOWED, f"allowed here: {self._allow}", headers={"Allow": self._allow})
        now_ms = self._service.clock.now_ms()
        key = await authenticate(request, self._service.tenants, now_ms)
        self._service.key_used(key.key_hash, now_ms)
        tenant_id, headers = await self._admit(request, key)
        check_acceptable(request, JSON)
        call = Call(self._service, request, tenant_id, now_ms, scope=key.scope, key_name=key.name)
        with one_at_a_time(self._service, request, tenant_id):
            async with self._lane(tenant_id):
                response = (await handler(call)).response()
        _add_headers(response, headers)
        return response

    async def _admit(self, request: Request, key: ApiKey) -> tuple[int, Mapping[str, str]]:
        """The tenant, and what the answer tells of its limit; 403 or 429 if it may not call, or not now."""
        tenant_id = self._check(request, key)
        tenant = await self._service.tenants.tenants.get(tenant_id)
        allowance = self._service.rates.take(tenant_id, limits_of(tenant)[REQUESTS_LIMIT])
        return tenant_id, allowance.headers()

    def _lane(self, tenant_id: int) -> AbstractAsyncContextManager[None]:
        return self._service.lanes.enter(tenant_id)

    def _check(self, request: Request, key: ApiKey) -> int:
        return check_scope(key, "GET" if self._reads else request.method, self._full_only)


class WorkEndpoint(Endpoint):
    """One URL of the work protocol."""

    def _lane(self, tenant_id: int) -> AbstractAsyncContextManager[None]:
        return nullcontext()  # a worker's claim waits for work

    def _check(self, request: Request, key: ApiKey) -> int:
        return check_worker(key)


class OperatorEndpoint(Endpoint):
    """One URL of the operators' API; each use is told, with who."""

    async def _admit(self, request: Request, key: ApiKey) -> tuple[int, Mapping[str, str]]:
        check_operator(key)
        self._service.events.emit("api.operated", key=key.name, method=request.method, path=request.scope["path"])
        return NO_TENANT, {}


class OpenEndpoint:
    """A URL that needs no key."""

    def __init__(self, service: Service, handler: OpenHandler) -> None:
        self._service = service
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._service, scope, receive, send, self._answer)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Problem(METHOD_NOT_ALLOWED, "allowed here: GET, HEAD", headers={"Allow": "GET, HEAD"})
        return await self._handler(self._service, request)


async def respond(
    service: Service, scope: Scope, receive: Receive, send: Send, answer: Callable[[Request], Awaitable[Response]]
) -> None:
    """Answer one request. A caller whose body was not wanted has sent it all before the answer, which arrives then."""
    incoming = Incoming(receive)
    request = Request(scope, incoming)
    response = await _answered(service, request, answer)
    if response.status_code >= 400:
        await incoming.drain(request.headers)
    await response(scope, receive, send)


async def _answered(service: Service, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """The answer, or the problem that an error stands for; a mistake of ours is told as an event, not to the caller."""
    request_id = _request_id(request)
    path = _told_path(request.scope["path"])
    started_ms = service.clock.boot_ms()
    try:
        response = await answer(request)
    except Exception as error:
        problem = problem_of(error)
        if isinstance(error, KeyMissing):
            service.events.emit("api.sealed", request_id=request_id, error=str(error))
        if problem is None:
            service.events.emit("api.failed", request_id=request_id, path=path, error=error)
            problem = Problem(INTERNAL, f"request {request_id} failed; it is on record here")
        response = problem_response(problem)
    _add_headers(response, {REQUEST_ID: request_id})
    if service.cors_origins:
        _allow_origin(service, request, response)
    service.events.emit(
        "api.answered",
        request_id=request_id,
        method=request.method,
        path=path,
        status=response.status_code,
        took_ms=service.clock.boot_ms() - started_ms,
    )
    return response


def _add_headers(response: Response, headers: Mapping[str, str]) -> None:
    """Headers that no handler sets: they need not be looked for among those that are there."""
    for name, value in headers.items():
        response.raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))


def _told_path(path: str) -> str:
    """The path without a worker's token, which is good for as long as its run lasts; also where it fits no route."""
    if not path.startswith(WORK):
        return path
    return f"{WORK}{{token}}{''.join(path[len(WORK) :].partition(':')[1:])}"


def _preflight(request: Request, allow: str) -> dict[str, str]:
    """What a browser asks before it lets a page call us."""
    if "access-control-request-method" not in request.headers:
        return {}
    return {
        "Access-Control-Allow-Methods": allow,
        "Access-Control-Allow-Headers": ALLOWED_HEADERS,
        "Access-Control-Max-Age": "600",
    }


def _allow_origin(service: Service, request: Request, response: Response) -> None:
    origin = request.headers.get("origin")
    response.headers["Vary"] = "Origin"
    if origin in service.cors_origins:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS


def _request_id(request: Request) -> str:
    given = request.headers.get(REQUEST_ID)
    if given and _REQUEST_ID.fullmatch(given):
        return given
    return f"{random.getrandbits(64):016x}"
