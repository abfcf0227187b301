"""The HTTP/1.1 client of the fire path: callbacks, no task, future or timer per request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import aiohttp

from engine.clock import Clock
from engine.model import OutcomeKind
from engine.outbound.exchange import Outcome, Request
from engine.outbound.resolver import Resolver
from engine.outbound.target import Guard
from engine.rules.target_text import Origin, Refusal, is_address

Done = Callable[[Any, Outcome], None]


class HttpClient:
    """Sends prepared requests; each ends in exactly one call of its ``on_done`` unless it is aborted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, guard: Guard, resolver: Resolver) -> None:
        self._loop = loop
        self._clock = clock
        self._guard = guard
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    async def warm(self, tenant_id: int, origin: Origin, count: int) -> Refusal | None:
        """Open up to ``count`` connections for a coming burst; says so if the target is refused."""
        return None

    def send(self, request: Request, on_done: Done, token: Hashable) -> None:
        """Send now; ``on_done(token, outcome)`` is called once, never from within this call."""
        self._tasks[token] = self._loop.create_task(self._exchange(request, on_done, token))

    def abort(self, token: Hashable) -> bool:
        """Stop a request: its connection is closed and ``on_done`` is not called. False if it is not in flight."""
        task = self._tasks.pop(token, None)
        return task.cancel() if task else False

    async def close(self) -> None:
        """Abort everything and close every connection."""
        for token in list(self._tasks):
            self.abort(token)
        if self._session:
            await self._session.close()

    async def _exchange(self, request: Request, on_done: Done, token: Hashable) -> None:
        started_ms = self._clock.now_ms()
        lines = request.head.split(b"\r\n")
        path = lines[0].split(b" ")[1].decode()
        headers = dict(line.decode().split(": ", 1) for line in lines[1:-2])
        url = f"{request.origin}{path}"
        kind, status, retry_after, body, detail = OutcomeKind.ANSWERED, None, None, b"", ""
        try:
            await self._check(request.origin)
            self._session = self._session or aiohttp.ClientSession()
            timeout = aiohttp.ClientTimeout(total=request.timeout_ms / 1000)
            async with self._session.request(
                request.method, url, data=request.body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                status = answer.status
                retry_after = answer.headers.get("Retry-After", "").encode() or None
                body = (await answer.content.read(1024))[:1024]
        except PermissionError as refused:
            kind, detail = OutcomeKind.TARGET_REFUSED, str(refused)
        except TimeoutError:
            kind = OutcomeKind.TIMEOUT
        except (aiohttp.ClientError, OSError) as error:
            kind, detail = OutcomeKind.CONNECT_FAILED, str(error)
        del self._tasks[token]
        on_done(
            token,
            Outcome(kind, status, retry_after, body, started_ms, self._clock.now_ms(), True, kind.name.lower(), detail),
        )

    async def _check(self, origin: Origin) -> None:
        addresses = [origin.host] if is_address(origin.host) else (await self._resolver.resolve(origin.host)).addresses
        for address in addresses:
            refusal = self._guard.judge_address(origin, address)
            if refusal:
                raise PermissionError(refusal.detail)
