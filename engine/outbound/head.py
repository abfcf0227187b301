"""Request heads: what is the same for every run of a version is built once, what differs is added for each attempt."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from engine._native import wire
from engine.rules.headers import is_reserved
from engine.rules.target_text import Target

USER_AGENT = f"SecondZero/{version('secondzero')}"
# RFC 9110 8.6: these methods announce even an empty body.
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


def user_agent_with(contact: str | None) -> str:
    """What calls say of who makes them, with whom to ask about it."""
    return f"{USER_AGENT} ({contact})" if contact else USER_AGENT


def fixed_head(
    target: Target, method: str, headers: Iterable[tuple[str, str]], body: bytes | None, user_agent: str = USER_AGENT
) -> bytes:
    """What every run of a job's version shares: request line, Host, the job's own headers, Content-Length.

    Raises ValueError for anything that could change where the head ends or what it says of the body; at PUT the same is
    a fault (engine/rules/headers.py), so this is the second lock on that door.
    """
    fields = [("Host", target.host_header), ("User-Agent", user_agent), ("Accept-Encoding", "identity")]
    fields += [_own(name, value) for name, value in headers]
    if body is not None or method in _WITH_BODY:
        fields.append(("Content-Length", str(len(body or b""))))
    encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields]
    return wire.fixed_head(method.encode("ascii"), target.path.encode("ascii"), encoded)


def run_head(fixed: bytes, key: bytes, scheduled_at_ms: int, attempt: int, timestamp_s: int, signature: bytes) -> bytes:
    """A complete head: the fixed part and the headers of this attempt, ``key`` as Idempotency-Key and webhook-id."""
    return wire.run_head(fixed, key, scheduled_at_ms, attempt, timestamp_s, signature)


def _own(name: str, value: str) -> tuple[str, str]:
    if is_reserved(name):
        raise ValueError(f"{name} is not a job's to set")
    return name, value
