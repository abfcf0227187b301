"""Request heads: what is the same for every run of a version is built once, what differs is added for each attempt."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from engine.rules.target_text import Target

USER_AGENT = "SecondZero/0.1.0"


def fixed_head(target: Target, method: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
    """The part of a head that every run of a job's version shares: request line, Host, the job's own headers."""
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.host_header}", f"User-Agent: {USER_AGENT}"]
    lines.append("Accept-Encoding: identity")
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body or b'')}")
    return "".join(line + "\r\n" for line in lines).encode("latin-1")


def run_head(fixed: bytes, key: bytes, scheduled_at_ms: int, attempt: int, timestamp_s: int, signature: bytes) -> bytes:
    """A complete head: the fixed part and the headers of this attempt."""
    scheduled = datetime.fromtimestamp(scheduled_at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        b"%bIdempotency-Key: %b\r\nX-Scheduled-At: %b\r\nX-Attempt: %d\r\n"
        b"webhook-id: %b\r\nwebhook-timestamp: %d\r\nwebhook-signature: %b\r\n\r\n"
    ) % (fixed, key, scheduled.encode(), attempt, key, timestamp_s, signature)
