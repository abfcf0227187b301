"""What can go wrong in a call of the API, sorted by what the caller can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SecondZeroError(Exception):
    """Every error of this package."""


class Unavailable(SecondZeroError):
    """No answer, or only "not now", for as long as the call was tried. Whether it had an effect is not known."""


class ApiError(SecondZeroError):
    """The API refuses a call. ``problem`` is its answer (RFC 9457), ``errors`` every fault with its JSON pointer."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type: str = problem.get("type", "about:blank")
        self.title: str = problem.get("title", f"answered {status}")
        self.detail: str = problem.get("detail", "")
        self.errors: list[dict[str, str]] = list(problem.get("errors", ()))
        super().__init__(self._text())

    def _text(self) -> str:
        faults = "; ".join(f"{fault.get('pointer') or 'the body'}: {fault.get('detail')}" for fault in self.errors)
        return ": ".join(part for part in (f"{self.status} {self.title}", faults or self.detail) if part)


class NotAllowed(ApiError):
    """401 or 403: the key is not valid, or not for this."""


class NotFound(ApiError):
    """404: there is no such thing."""


class Conflict(ApiError):
    """409: the state does not allow this, a limit is reached, or a work token is stale."""


class PreconditionFailed(ApiError):
    """412: the job is another one by now, or there is one already."""


class Invalid(ApiError):
    """422: the input is invalid; ``errors`` has every fault."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    422: Invalid,
}


def api_error(status: int, problem: Any) -> ApiError:
    """The error that an answer of 400 or more stands for."""
    said = problem if isinstance(problem, Mapping) else {}
    return _BY_STATUS.get(status, ApiError)(status, said)
