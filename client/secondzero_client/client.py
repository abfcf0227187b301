"""The API for tenants: ``Client`` blocks, ``AsyncClient`` is awaited; both have the same calls (``calls.py``)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from importlib.metadata import version
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx

from secondzero_client import calls
from secondzero_client.errors import ApiError, NotFound, Unavailable
from secondzero_client.requests import Answer, Listing, Request
from secondzero_client.retries import AWAY, TURNED_AWAY, NoAnswer, RetryPolicy, Tries, retry_after_s
from secondzero_client.transport import CONNECT_S_MAX, Transport

P = ParamSpec("P")
T = TypeVar("T")

URL_VARIABLE, KEY_VARIABLE = "SECONDZERO_URL", "SECONDZERO_API_KEY"
USER_AGENT = f"secondzero-client/{version('secondzero-client')}"


class Call(Generic[P, T]):
    """A method of both clients, made of the function that says what is sent."""

    def __init__(self, build: Callable[P, Request[T]]) -> None:
        self._build = build

    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Request[T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._build
        send, build = client.send, self._build

        @wraps(build)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return send(build(*args, **kwargs))

        return call


class Pages(Generic[P, T]):
    """A method of both clients that goes through all entries of a list; pages are asked for as they are needed."""

    def __init__(self, build: Callable[P, Listing[T]]) -> None:
        self._build = build

    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Listing[T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._build
        entries, build = client.entries, self._build

        @wraps(build)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return entries(build(*args, **kwargs))

        return call


class Calls:
    """What both clients can do."""

    put_job = Call(calls.put_job)
    get_job = Call(calls.get_job)
    patch_job = Call(calls.patch_job)
    delete_job = Call(calls.delete_job)
    list_jobs = Pages(calls.list_jobs)
    batch_jobs = Call(calls.batch_jobs)
    pause_job = Call(calls.pause_job)
    resume_job = Call(calls.resume_job)
    run_job = Call(calls.run_job)
    list_runs = Pages(calls.list_runs)
    get_run = Call(calls.get_run)
    get_job_stats = Call(calls.get_job_stats)
    cancel_run = Call(calls.cancel_run)
    retry_run = Call(calls.retry_run)
    list_dead_letters = Pages(calls.list_dead_letters)
    retry_dead_letters = Call(calls.retry_dead_letters)
    delete_dead_letters = Call(calls.delete_dead_letters)
    preview_cron = Call(calls.preview_cron)
    list_clock_changes = Pages(calls.list_clock_changes)
    get_forecast = Call(calls.get_forecast)
    get_usage = Call(calls.get_usage)
    list_signing_secrets = Call(calls.list_signing_secrets)
    rotate_signing_secret = Call(calls.rotate_signing_secret)
    claim_work = Call(calls.claim_work)
    heartbeat_work = Call(calls.heartbeat_work)
    complete_work = Call(calls.complete_work)
    complete_works = Call(calls.complete_works)
    fail_work = Call(calls.fail_work)
    release_work = Call(calls.release_work)
    get_livez = Call(calls.get_livez)
    get_readyz = Call(calls.get_readyz)

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: RetryPolicy | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Without ``url`` and ``api_key`` those of SECONDZERO_URL and SECONDZERO_API_KEY. ``timeout_s`` is of one try.

        Calls are tried again after 429 and 503 and where there is no answer, as ``retries`` says, and only if a second
        effect would be none; a POST carries an Idempotency-Key of its own for that.
        """
        self.url = url or _variable(URL_VARIABLE)
        self._key = api_key or _variable(KEY_VARIABLE)
        self._retries = retries or RetryPolicy()
        self._timeout_s = timeout_s

    def _tries(self, request: Request[Any]) -> Tries:
        return Tries(self._retries, request.repeatable, time.monotonic(), request.total_s)

    def _headers(self, request: Request[Any]) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json", "User-Agent": USER_AGENT}
        if request.body is not None:
            headers["Content-Type"] = request.media_type
        return {**headers, **request.headers}


class Client(Calls):
    """Calls that block. Threads may share one; a context manager closes its connections."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: RetryPolicy | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(url, api_key, retries=retries, timeout_s=timeout_s)
        self._transport = Transport(self.url)

    def send(self, request: Request[T]) -> T:
        """The result of a call. ApiError if it is refused, Unavailable if it was not answered in time."""
        tries = self._tries(request)
        headers, content = self._headers(request), request.content()
        while True:
            outcome = self._transport.send(
                request.method, request.target(), content, headers, request.timeout_s or self._timeout_s
            )
            pause_s = _pause_s(tries, outcome)
            if pause_s is None:
                return _result(request, tries, outcome)
            time.sleep(pause_s)

    def entries(self, listing: Listing[T]) -> Iterator[T]:
        """All entries of a list, page after page."""
        token = None
        while True:
            page = self.send(listing.request.with_query(page_token=token))
            yield from page[listing.key]
            token = page["next_page_token"]
            if token is None:
                return

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Calls):
    """Calls to await, in one event loop."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        retries: RetryPolicy | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(url, api_key, retries=retries, timeout_s=timeout_s)
        self._http = httpx.AsyncClient(base_url=self.url, follow_redirects=False)

    async def send(self, request: Request[T]) -> T:
        """The result of a call. ApiError if it is refused, Unavailable if it was not answered in time."""
        tries = self._tries(request)
        headers, content = self._headers(request), request.content()
        while True:
            outcome = await self._once(request, headers, content)
            pause_s = _pause_s(tries, outcome)
            if pause_s is None:
                return _result(request, tries, outcome)
            await asyncio.sleep(pause_s)

    async def entries(self, listing: Listing[T]) -> AsyncIterator[T]:
        """All entries of a list, page after page."""
        token = None
        while True:
            page = await self.send(listing.request.with_query(page_token=token))
            for entry in page[listing.key]:
                yield entry
            token = page["next_page_token"]
            if token is None:
                return

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _once(self, request: Request[Any], headers: dict[str, str], content: bytes | None) -> Answer | NoAnswer:
        timeout_s = request.timeout_s or self._timeout_s
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX))
        try:
            response = await self._http.request(
                request.method, request.target(), content=content, headers=headers, timeout=timeout
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return NoAnswer(error, sent=False)
        except (httpx.TransportError, httpx.DecodingError) as error:
            return NoAnswer(error, sent=True)
        return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, response.content)


def _pause_s(tries: Tries, outcome: Answer | NoAnswer) -> float | None:
    if isinstance(outcome, NoAnswer):
        return tries.pause_s(outcome, None, time.monotonic(), random.random)
    asked_s = retry_after_s(outcome.headers.get("retry-after"), time.time())
    return tries.pause_s(outcome.status, asked_s, time.monotonic(), random.random)


def _result(request: Request[T], tries: Tries, outcome: Answer | NoAnswer) -> T:
    if isinstance(outcome, NoAnswer):
        raise Unavailable(f"{request.method} {request.path}: no answer: {outcome.error}") from outcome.error
    try:
        return request.reads(outcome)  # type: ignore[no-any-return]
    except NotFound:
        if request.gone and tries.maybe_done:
            return None  # type: ignore[return-value]
        raise
    except ApiError as error:
        if error.status == TURNED_AWAY or error.status in AWAY:
            raise Unavailable(f"{request.method} {request.path}: {error}") from error
        raise


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"neither given nor in the environment: {name}")
    return value
