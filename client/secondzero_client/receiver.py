"""The receiving side of a job's calls: only the service's own requests, and each run once in effect.

A request's signature is checked, then the fence (``fence.py``) lets one attempt of its run through at a time; a run
that has finished (2xx) is answered from memory. Frameworks stand behind ``AsgiReceiver`` or ``WsgiReceiver``; anything
else calls ``Receiver.receive``.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from secondzero_client.fence import Busy, Entered, Fence, Remembered, Stale
from secondzero_client.signatures import TOLERANCE_S, Secrets, Signatures

# The service sends at most so much.
BODY_BYTES_MAX = 256 * 1024
# A longer body is not remembered, only its status and headers. In base64 it fits a column of 64 KB.
REMEMBERED_BODY_BYTES_MAX = 32 * 1024
REMEMBERED_CHARS_MAX = 65_000
KEY_CHARS_MAX = 255
# What belongs to one answer on one connection.
_NOT_REMEMBERED = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})


@dataclass(frozen=True)
class Call:
    """A request that is let through. ``key`` is the same for every attempt of a run."""

    key: str
    attempt: int
    scheduled_at: str
    headers: Mapping[str, str]
    body: bytes
    entered: Entered


@dataclass(frozen=True)
class Reply:
    """An answer; 2xx means that the run is done."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def done(self) -> bool:
        return 200 <= self.status < 300


class Receiver:
    """Threads and forked processes may share one.

    ``secrets``: the tenant's signing secrets, old and new, or a function that returns them. ``clock`` tells seconds
    since the epoch.
    """

    def __init__(
        self,
        secrets: Secrets,
        fence: Fence,
        *,
        tolerance_s: int = TOLERANCE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._signatures = Signatures(secrets, tolerance_s)
        self._fence = fence
        self._clock = clock

    def receive(
        self, headers: Mapping[str, str], body: bytes, handle: Callable[[Call], Reply | bytes | str | None]
    ) -> Reply:
        """The whole way of one request. What ``handle`` raises goes on to the caller, and the run is tried again."""
        call = self.enter(headers, body)
        if isinstance(call, Reply):
            return call
        try:
            answered = handle(call)
        except BaseException:
            self.give_up(call)
            raise
        return self.leave(call, answered if isinstance(answered, Reply) else _reply_of(answered))

    def enter(self, headers: Mapping[str, str], body: bytes) -> Call | Reply:
        """The call, if it is to be carried out: ``leave`` or ``give_up`` must follow. Else what to answer."""
        lower = {name.lower(): value for name, value in headers.items()}
        if len(body) > BODY_BYTES_MAX:
            return _problem(413, f"at most {BODY_BYTES_MAX} bytes")
        fault = self._signatures.fault(lower, body, self._clock())
        if fault is not None:
            return _problem(401, fault)
        # The signature covers webhook-id: the key counts only where it says the same.
        key, attempt = lower["webhook-id"], lower.get("x-attempt", "")
        if lower.get("idempotency-key", key) != key or len(key) > KEY_CHARS_MAX:
            return _problem(400, "Idempotency-Key is not webhook-id")
        if not (attempt.isascii() and attempt.isdigit() and len(attempt) <= 18):
            return _problem(400, "X-Attempt is missing")
        verdict = self._fence.enter(key, int(attempt))
        if isinstance(verdict, Entered):
            return Call(key, int(attempt), lower.get("x-scheduled-at", ""), lower, body, verdict)
        return _refusal(verdict)

    def leave(self, call: Call, reply: Reply) -> Reply:
        """The call has ended with this answer; returns what to answer."""
        if self._fence.leave(call.entered, _text_of(reply), finished=reply.done):
            return reply
        return _problem(409, "this attempt was silent for too long, and another one has taken over")

    def give_up(self, call: Call) -> None:
        """The call has ended without an answer."""
        self._fence.leave(call.entered, None, finished=False)


def _refusal(verdict: Remembered | Busy | Stale) -> Reply:
    if isinstance(verdict, Remembered):
        return _reply_from(verdict.answer)
    if isinstance(verdict, Stale):
        return _problem(409, f"attempt {verdict.highest_attempt} of this run has been here")
    wait_s = max(1, -(-verdict.for_ms // 1000))
    return _problem(409, "another attempt of this run is under way", ("Retry-After", str(wait_s)))


def _problem(status: int, detail: str, *headers: tuple[str, str]) -> Reply:
    body = json.dumps({"title": "The receiver does not take this call", "status": status, "detail": detail})
    return Reply(status, (("Content-Type", "application/problem+json"), *headers), body.encode())


def _reply_of(answered: bytes | str | None) -> Reply:
    if isinstance(answered, str):
        return Reply(body=answered.encode())
    return Reply(body=answered or b"")


def _text_of(reply: Reply) -> str:
    headers = [pair for pair in reply.headers if pair[0].lower() not in _NOT_REMEMBERED]
    body = reply.body if len(reply.body) <= REMEMBERED_BODY_BYTES_MAX else b""
    text = _encoded(reply.status, headers, body)
    return text if len(text) <= REMEMBERED_CHARS_MAX else _encoded(reply.status, (), b"")


def _encoded(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> str:
    return json.dumps([status, list(headers), base64.b64encode(body).decode()])


def _reply_from(text: str) -> Reply:
    status, headers, body = json.loads(text)
    said: list[Any] = [tuple(pair) for pair in headers]
    return Reply(status, (*said, ("Idempotency-Replayed", "true")), base64.b64decode(body))
