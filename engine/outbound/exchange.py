"""A request and what becomes of it: what passes between the stage that fires and the client."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.model import OutcomeKind
from engine.rules.target_text import Origin

if TYPE_CHECKING:
    from engine.outbound.connection import Connection


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


@dataclass(slots=True, eq=False)
class Request:
    """Prepared before its second: ``head`` is complete, blank line included (see engine/outbound/head.py).

    The rest is the client's while the request is on its way. (An object of its own for that would take a twentieth of
    the time of a call.) After an outcome that is not ANSWERED the request is not to be used again.
    """

    tenant_id: int
    origin: Origin
    method: str
    head: bytes = field(repr=False)  # it has secrets, as the body may
    body: bytes = field(repr=False)
    timeout_ms: int

    on_done: Done = field(init=False, repr=False)
    token: Hashable = field(init=False, repr=False)
    started_ms: int = field(init=False, repr=False)
    deadline_ms: int = field(init=False, repr=False)
    bytes_sent: bool = field(default=False, init=False, repr=False)
    connection: Connection | None = field(default=None, init=False, repr=False)
