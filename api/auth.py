"""Who calls: the API key of a request, judged by its hash."""

from __future__ import annotations

from fnmatch import fnmatchcase

from starlette.requests import Request

from api.errors import FORBIDDEN, UNAUTHORIZED, Problem
from engine.store.tenants import KEY_PREFIX, ApiKey, Tenants, hash_key

# A key has 35 characters; what is much longer is none and need not be hashed.
KEY_CHARS_MAX = 128

FULL, READ, ADMIN, WORKER = "full", "read", "admin", "worker:"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


async def authenticate(request: Request, tenants: Tenants, now_ms: int) -> ApiKey:
    """The caller's key; 401 if there is none that is valid, 403 if it may not do this."""
    key = await _find_key(request, tenants)
    if key is None or key.revoked or (key.expires_at_ms is not None and key.expires_at_ms <= now_ms):
        raise _unauthorized("the API key is unknown, revoked or expired")
    if key.tenant_disabled:
        raise Problem(FORBIDDEN, "the tenant is disabled")
    return key


def check_scope(key: ApiKey, method: str, full_only: bool) -> int:
    """The tenant whose jobs may be read (and written, with a full key); 403 otherwise."""
    if key.tenant_id is None or key.scope not in (FULL, READ):
        raise Problem(FORBIDDEN, f"a key of scope {key.scope} has no access to jobs")
    if key.scope == READ and (full_only or method not in _SAFE_METHODS):
        raise Problem(FORBIDDEN, "a key of scope read can only read")
    return key.tenant_id


def check_worker(key: ApiKey) -> int:
    """The tenant whose functions may be worked on, with a full key or one of workers; 403 otherwise."""
    if key.tenant_id is None or not (key.scope == FULL or key.scope.startswith(WORKER)):
        raise Problem(FORBIDDEN, f"a key of scope {key.scope} has no access to work")
    return key.tenant_id


def may_work_on(scope: str, function: str) -> bool:
    """Whether a key of this scope may claim runs of a function: worker:… names them, with * for any characters."""
    return scope == FULL or any(
        fnmatchcase(function, pattern) for pattern in scope.removeprefix(WORKER).split(",") if pattern
    )


def check_operator(key: ApiKey) -> None:
    """403 unless it is a key of operators."""
    if key.tenant_id is not None or key.scope != ADMIN:
        raise Problem(FORBIDDEN, "this needs a key of operators; secondzero key create --operators makes one")


async def _find_key(request: Request, tenants: Tenants) -> ApiKey | None:
    sent = request.headers.getlist("authorization")
    if len(sent) > 1:  # a proxy before us may have judged by the other one
        raise _unauthorized("send one Authorization header")
    scheme, _, given = "".join(sent).partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer":
        raise _unauthorized("send Authorization: Bearer with an API key")
    if not given.startswith(KEY_PREFIX) or len(given) > KEY_CHARS_MAX or not given.isascii():
        raise _unauthorized("the API key is unknown, revoked or expired")
    # Found by the hash of what was sent: how long that takes says nothing about other keys.
    return await tenants.keys.get(hash_key(given))


def _unauthorized(detail: str) -> Problem:
    return Problem(UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="secondzero"'})
