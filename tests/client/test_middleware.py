"""The receiver before an ASGI application: answers in parts, clients that go, and what is no HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secondzero_client import AsgiReceiver, Call, Receiver, Reply, sqlite_fence
from secondzero_client.fence import Entered
from secondzero_client.middleware import ANSWER_BYTES_MAX
from tests.client.test_receiver import BODY, NEW, NOW_S
from tests.support.signed import headers_of, request_bytes
from tests.support.wait import until_async


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver([NEW], sqlite_fence(tmp_path / "attempts.db"), clock=lambda: NOW_S)


def scope(attempt: int = 1) -> dict[str, Any]:
    headers, _ = headers_of(request_bytes("http://127.0.0.1/", [NEW], "run_1", attempt, BODY, sent_at_s=NOW_S))
    named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "path": "/hooks/report", "headers": named}


async def ask(app: AsgiReceiver, attempt: int = 1) -> list[Any]:
    """What is sent, in answer to a body in two parts."""
    parts = [BODY[:4], BODY[4:]]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope(attempt), receive, send)
    return sent


def test_a_view_gets_the_body_whole_and_its_answer_goes_out_whole(receiver: Receiver) -> None:
    async def view(scope: Any, receive: Any, send: Any) -> None:
        call: Call = scope["secondzero.call"]
        assert (await receive())["body"] == call.body == BODY
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-made", b"yes")]})
        await send({"type": "http.response.body", "body": b"in ", "more_body": True})
        await send({"type": "http.response.body", "body": b"parts"})

    start, body = asyncio.run(ask(AsgiReceiver(view, receiver)))
    assert start["headers"] == [(b"x-made", b"yes"), (b"content-length", b"8")]
    assert body["body"] == b"in parts"


def test_an_answer_without_end_goes_out_without_its_body(receiver: Receiver) -> None:
    async def view(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x" * (ANSWER_BYTES_MAX // 2), "more_body": True})
        await send({"type": "http.response.body"})

    start, body = asyncio.run(ask(AsgiReceiver(view, receiver)))
    assert (start["status"], body["body"]) == (200, b"")


def test_p3_a_view_that_is_cancelled_lets_the_next_attempt_in(receiver: Receiver) -> None:
    async def view(scope: Any, receive: Any, send: Any) -> None:
        if scope["secondzero.call"].attempt == 1:
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def cancelled_and_asked_again() -> list[Any]:
        app = AsgiReceiver(view, receiver)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(app), 0.2)
        return await ask(app, 2)

    start, _ = asyncio.run(cancelled_and_asked_again())
    assert start == {"type": "http.response.start", "status": 204, "headers": []}


class SlowFence:
    """Lets go of who enters when it is told."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.left: list[Entered] = []

    def enter(self, key: str, attempt: int) -> Entered:
        self.go.wait(20)
        return Entered(key, "holder")

    def leave(self, entered: Entered, answer: str | None, *, finished: bool) -> bool:
        self.left.append(entered)
        return True


def test_p3_who_goes_while_the_fence_is_asked_does_not_hold_the_run() -> None:
    fence = SlowFence()
    receiver = Receiver([NEW], fence, clock=lambda: NOW_S)  # type: ignore[arg-type]

    async def never(*_: Any) -> None:
        raise AssertionError("nobody waits for it")

    async def gone() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(AsgiReceiver(never, receiver)), 0.1)
        fence.go.set()
        await until_async(lambda: fence.left)

    asyncio.run(gone())
    assert len(fence.left) == 1


@pytest.mark.parametrize("asked", [{"type": "lifespan"}, {"type": "http", "path": "/elsewhere"}])
def test_what_is_not_the_receivers_passes_by(receiver: Receiver, asked: dict[str, Any]) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    nothing: Callable[..., Any] = Reply
    asyncio.run(AsgiReceiver(app, receiver, ["/hooks/"])(asked, nothing, nothing))
    assert seen == [asked]
