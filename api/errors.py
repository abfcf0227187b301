"""What goes wrong in a call, as RFC 9457 problems: one stable type for each kind of error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from engine.errors import CallerError, Fault, HistoryUnavailable, StoreUnavailable
from engine.keys import KeyMissing


class Kind(NamedTuple):
    """A kind of problem: the last part of its type, its status and its title, which never change."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        return f"urn:secondzero:problem:{self.name}"


NOT_JSON = Kind("not-json", 400, "The body is not JSON")
BAD_REQUEST = Kind("bad-request", 400, "The request cannot be understood")
UNAUTHORIZED = Kind("unauthorized", 401, "A valid API key is needed")
FORBIDDEN = Kind("forbidden", 403, "The API key does not allow this")
NOT_FOUND = Kind("not-found", 404, "There is no such thing")
METHOD_NOT_ALLOWED = Kind("method-not-allowed", 405, "The method is not allowed here")
NOT_ACCEPTABLE = Kind("not-acceptable", 406, "The answer is not available in an accepted media type")
CONFLICT = Kind("conflict", 409, "The state does not allow this")
IN_PROGRESS = Kind("in-progress", 409, "The same call is being carried out")
LIMIT_REACHED = Kind("limit-reached", 409, "A limit of the tenant is reached")
TIMEOUT = Kind("timeout", 408, "The request took too long to arrive")
PRECONDITION_FAILED = Kind("precondition-failed", 412, "A precondition does not hold")
TOO_LARGE = Kind("too-large", 413, "The body is too large")
UNSUPPORTED_MEDIA_TYPE = Kind("unsupported-media-type", 415, "The media type is not supported")
INVALID = Kind("invalid", 422, "The input is invalid")
TOO_MANY_REQUESTS = Kind("too-many-requests", 429, "Too many requests")
HEAD_TOO_LARGE = Kind("head-too-large", 431, "The request's head is too large")
INTERNAL = Kind("internal", 500, "Something went wrong here")
UNAVAILABLE = Kind("unavailable", 503, "Part of the service is away")

KINDS = [kind for kind in list(globals().values()) if isinstance(kind, Kind)]

RETRY_AFTER_S = 1


class Problem(Exception):  # noqa: N818 - an answer, not a mistake of ours
    """Ends a call with this answer."""

    def __init__(
        self, kind: Kind, detail: str, faults: Iterable[Fault] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.faults = list(faults)
        self.headers = dict(headers or {})
        super().__init__(detail)

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        said: dict[str, Any] = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        }
        if self.faults:
            said["errors"] = [_fault_document(fault) for fault in self.faults]
        return said


def invalid(faults: Iterable[Fault]) -> Problem:
    """422 with every fault found."""
    found = list(faults)
    return Problem(INVALID, "1 fault" if len(found) == 1 else f"{len(found)} faults", found)


def not_found(what: str) -> Problem:
    return Problem(NOT_FOUND, f"there is no such {what}")


def problem_of(error: Exception) -> Problem | None:
    """The answer that an error stands for; None if it is a mistake of ours."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, CallerError):
        return invalid(error.faults)
    if isinstance(error, HistoryUnavailable):
        detail = "runs that have left MySQL cannot be read for now, try again"
        return Problem(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, KeyMissing):
        return Problem(
            UNAVAILABLE,
            "what is stored here is sealed, and this host cannot open it for now; nothing has changed, try again",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    if isinstance(error, StoreUnavailable):
        return Problem(
            UNAVAILABLE,
            "a shard did not answer; nothing is known to have changed, try again",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    return None


def _fault_document(fault: Fault) -> dict[str, Any]:
    said: dict[str, Any] = {"pointer": fault.pointer, "detail": fault.detail}
    return said if fault.example is None else said | {"example": fault.example}
