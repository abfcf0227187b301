"""A call of the API as a value: what is sent, whether it may be sent again, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from secondzero_client.errors import api_error

T = TypeVar("T")

JSON = "application/json"
MERGE_PATCH_JSON = "application/merge-patch+json"


@dataclass(frozen=True)
class Answer:
    """Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def read_json(answer: Answer) -> Any:
    """The document of an answer; ApiError for 400 and more."""
    try:
        document = json.loads(answer.body) if answer.body else None
    except ValueError:
        document = None if answer.status < 400 else {"detail": answer.body[:200].decode(errors="replace")}
    if answer.status >= 400:
        raise api_error(answer.status, document)
    return document


@dataclass(frozen=True)
class Request(Generic[T]):
    """``repeatable``: sent twice it has no second effect. ``reads`` makes the call's result of its answer.

    ``gone``: the effect is an absence, so "not found" after a try whose answer was lost means that it was done.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = JSON
    repeatable: bool = True
    gone: bool = False
    timeout_s: float | None = None
    total_s: float | None = None
    reads: Callable[[Answer], Any] = read_json

    def target(self) -> str:
        """Path and query."""
        asked = {name: value for name, value in self.query.items() if value is not None and value != []}
        return self.path + (f"?{urlencode(asked, doseq=True)}" if asked else "")

    def content(self) -> bytes | None:
        """The body as it is sent. ValueError for what is no JSON."""
        if self.body is None:
            return None
        return json.dumps(self.body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    def with_query(self, **query: Any) -> Request[T]:
        return replace(self, query={**self.query, **query})


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list that is answered in pages; ``key`` has a page's entries."""

    request: Request[Any]
    key: str
