"""One request and what becomes of it: the values between the stage that fires and the client."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.model import OutcomeKind
from engine.rules.target_text import Origin

if TYPE_CHECKING:
    from engine.outbound.connection import Connection


@dataclass(slots=True)
class Request:
    """Prepared before its second: ``head`` is complete, blank line included (see engine/outbound/head.py)."""

    tenant_id: int
    origin: Origin
    method: str
    head: bytes
    body: bytes
    timeout_ms: int


class Outcome(NamedTuple):
    """How a request ended. ``started_ms`` is read directly before the first byte is written (or before giving up).

    ``bytes_sent`` says whether any byte of the request may have left. ``body`` is the answer's first 1,024 bytes.
    ``reason`` is a short class a tenant may see (``tls_expired``), ``detail`` is for the operator alone.
    """

    kind: OutcomeKind
    status: int | None
    retry_after: bytes | None
    body: bytes
    started_ms: int
    finished_ms: int
    bytes_sent: bool
    reason: str
    detail: str


class Failure(NamedTuple):
    """Why there is no answer; the part of an outcome that its cause knows."""

    kind: OutcomeKind
    reason: str
    detail: str = ""


Done = Callable[[Any, Outcome], None]


class Exchange:
    """A request on its way: waiting for a connection, or on one."""

    __slots__ = ("bytes_sent", "connection", "deadline_ms", "on_done", "request", "started_ms", "token")

    def __init__(self, request: Request, on_done: Done, token: Hashable, now_ms: int) -> None:
        self.request = request
        self.on_done = on_done
        self.token = token
        self.started_ms = now_ms
        self.deadline_ms = now_ms + request.timeout_ms
        self.bytes_sent = False
        self.connection: Connection | None = None
