"""The receiver before a framework: as ASGI and as WSGI middleware. The view behind it sees plain requests."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from http.client import responses
from typing import Any

from secondzero_client.receiver import BODY_BYTES_MAX, Call, Receiver, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# Whoever is called by a scheduler answers in a few bytes; a longer body is left away.
ANSWER_BYTES_MAX = 1 << 20
CALL = "secondzero.call"
"""Under this key of the ASGI scope or the WSGI environment a view finds its ``Call``."""


class AsgiReceiver:
    """``paths``: what begins with one of these is let through only by the receiver; all else passes by."""

    def __init__(self, app: AsgiApp, receiver: Receiver, paths: Sequence[str] = ("/",)) -> None:
        self._app = app
        self._receiver = receiver
        self._paths = tuple(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._paths):
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return
        call = await self._enter(_headers(scope), body)
        if isinstance(call, Reply):
            await _send_reply(send, call)
        else:
            await self._carry_out(call, scope, receive, send)

    async def _enter(self, headers: Mapping[str, str], body: bytes) -> Call | Reply:
        """In a thread, since the fence waits for its database. Who is cancelled meanwhile does not hold the run."""
        entering = asyncio.ensure_future(asyncio.to_thread(self._receiver.enter, headers, body))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._leave_at_once)
            raise

    def _leave_at_once(self, entering: asyncio.Future[Call | Reply]) -> None:
        if not entering.cancelled() and entering.exception() is None and isinstance(entering.result(), Call):
            self._receiver.give_up(entering.result())  # type: ignore[arg-type]

    async def _carry_out(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _AsgiAnswer(self._receiver, call, send)
        try:
            await self._app({**scope, CALL: call}, _again(call.body, receive), answer.take)
        finally:
            if not answer.sent:
                self._receiver.give_up(call)


class _AsgiAnswer:
    """Holds back an answer until it is whole and on record."""

    def __init__(self, receiver: Receiver, call: Call, send: Send) -> None:
        self._receiver = receiver
        self._call = call
        self._send = send
        self._status = 500
        self._headers: tuple[tuple[str, str], ...] = ()
        self._body = _Body()
        self.sent = False

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            named = message.get("headers", ())
            self._headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in named)
        elif message["type"] == "http.response.body" and not self.sent:
            self._body.add(message.get("body", b""))
            if not message.get("more_body", False):
                self.sent = True
                reply = Reply(self._status, self._headers, self._body.whole())
                await _send_reply(self._send, await asyncio.to_thread(self._receiver.leave, self._call, reply))


class WsgiReceiver:
    """``paths``: what begins with one of these is let through only by the receiver; all else passes by."""

    def __init__(self, app: Callable[..., Iterable[bytes]], receiver: Receiver, paths: Sequence[str] = ("/",)) -> None:
        self._app = app
        self._receiver = receiver
        self._paths = tuple(paths)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not environ.get("PATH_INFO", "/").startswith(self._paths):
            return self._app(environ, start_response)
        body = _input(environ)
        reply = self._receiver.receive(_environ_headers(environ), body, lambda call: self._carry_out(call, environ))
        status = f"{reply.status} {responses.get(reply.status, 'Unknown')}"
        start_response(status, _sent_headers(reply))
        return [reply.body]

    def _carry_out(self, call: Call, environ: dict[str, Any]) -> Reply:
        behind = {**environ, CALL: call, "wsgi.input": io.BytesIO(call.body), "CONTENT_LENGTH": str(len(call.body))}
        behind.pop("HTTP_TRANSFER_ENCODING", None)
        started: list[tuple[str, list[tuple[str, str]]]] = []
        body = _Body()

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
            started.append((status, headers))
            return body.add

        parts = self._app(behind, start)
        try:
            for part in parts:
                body.add(part)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        status, headers = started[-1]
        return Reply(int(status.split(" ", 1)[0]), tuple(headers), body.whole())


class _Body:
    """The parts of an answer's body, up to a bound."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, part: bytes) -> None:
        self._bytes += len(part)
        if self._bytes <= ANSWER_BYTES_MAX:
            self._parts.append(part)
        else:
            self._parts.clear()

    def whole(self) -> bytes:
        return b"".join(self._parts)


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, and no more than proves it too long; None if the client has gone."""
    body = b""
    while len(body) <= BODY_BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body for the application, then whatever comes."""
    unread = [body]

    async def receive_again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return receive_again


async def _send_reply(send: Send, reply: Reply) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in _sent_headers(reply)]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _sent_headers(reply: Reply) -> list[tuple[str, str]]:
    headers = [pair for pair in reply.headers if pair[0].lower() != "content-length"]
    return headers if reply.status == 204 else [*headers, ("Content-Length", str(len(reply.body)))]


def _headers(scope: Scope) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _environ_headers(environ: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        name[len("HTTP_") :].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")
    }


def _input(environ: Mapping[str, Any]) -> bytes:
    """At most one byte more than is allowed, so that it is told as too long."""
    length = environ.get("CONTENT_LENGTH") or "0"
    wanted = min(int(length), BODY_BYTES_MAX + 1) if length.isdigit() else 0
    return environ["wsgi.input"].read(wanted) if wanted else b""
