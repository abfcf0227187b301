"""Which headers a job may bring: names and values that cannot change where a request ends or what it claims to be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from engine.errors import Fault

HEADERS_MAX = 64
NAME_BYTES_MAX = 128
VALUE_BYTES_MAX = 8_192
# With the engine's own headers a head stays below the 16 KB that servers read at most.
TOTAL_BYTES_MAX = 12_288

# RFC 9110 5.1: field names are tokens. 5.5: values are visible ASCII with spaces and tabs between. Not beyond ASCII:
# servers disagree on its encoding.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?", re.ASCII)

# What frames a message, names the connection's ends or is the engine's own to say; the hop-by-hop fields of RFC 9110
# 7.6.1 with them. Accept-Encoding is ours, because answers are read as they come; User-Agent, because it says who
# calls.
RESERVED = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "idempotency-key",
        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "user-agent", "x-attempt", "x-scheduled-at",
    }
)  # fmt: skip
RESERVED_PREFIX = "webhook-"

# Headers whose values are secrets unless the tenant says otherwise: what their names are commonly made of.
_SECRET = re.compile(
    r"(^|[-_.])(authorization|cookie|api-?key|auth|token|secret|password|credentials?)([-_.]|$)", re.IGNORECASE
)


def header_faults(headers: Iterable[tuple[str, str]], pointer: str = "/target/http/headers") -> list[Fault]:
    """Every fault of a job's headers, each at ``pointer`` plus the name."""
    pairs = list(headers)
    faults = [fault for name, value in pairs for fault in _faults_of(name, value, pointer)]
    return faults + _faults_together(pairs, pointer)


def _faults_of(name: str, value: str, pointer: str) -> list[Fault]:
    sound = len(value) <= VALUE_BYTES_MAX and _VALUE.fullmatch(value) is not None
    if sound and len(name) <= NAME_BYTES_MAX and _is_sound(name):
        return []
    where = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
    faults = []
    if not _NAME.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        faults.append(Fault(where, f"not a header name of at most {NAME_BYTES_MAX} characters", "X-Order-Id"))
    elif is_reserved(name):
        faults.append(Fault(where, f"{name} is set by the service and cannot be given"))
    if not _VALUE.fullmatch(value):
        faults.append(Fault(where, "a value is visible ASCII, with spaces and tabs only between", "application/json"))
    if len(value) > VALUE_BYTES_MAX:
        faults.append(Fault(where, f"a value has at most {VALUE_BYTES_MAX} bytes"))
    return faults


# Tenants give the same few names again and again; one that is too long is not kept.
@lru_cache(maxsize=4_096)
def _is_sound(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not is_reserved(name)


def is_reserved(name: str) -> bool:
    """Whether the service sets this header itself."""
    lower = name.lower()
    return lower in RESERVED or lower.startswith(RESERVED_PREFIX)


def is_secret(name: str) -> bool:
    """Whether a header's value is a secret where nothing else is said: Authorization, Cookie, X-Api-Key, the like."""
    return _is_secret(name[: NAME_BYTES_MAX + 1])


@lru_cache(maxsize=4_096)
def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def _faults_together(pairs: list[tuple[str, str]], pointer: str) -> list[Fault]:
    faults = []
    if len(pairs) > HEADERS_MAX:
        faults.append(Fault(pointer, f"at most {HEADERS_MAX} headers"))
    if sum(len(name) + len(value) + 4 for name, value in pairs) > TOTAL_BYTES_MAX:
        faults.append(Fault(pointer, f"the headers together have at most {TOTAL_BYTES_MAX} bytes"))
    seen: set[str] = set()
    for name, _ in pairs:
        if name.lower() in seen:
            faults.append(Fault(pointer, f"the header {name} is given twice"))
        seen.add(name.lower())
    return faults
