"""One request and what became of it: the values between the stage that fires and the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.model import OutcomeKind
from engine.rules.target_text import Origin


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
