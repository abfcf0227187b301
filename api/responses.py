"""Answers: a status, a JSON value and headers, made into bytes once at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from api.errors import Problem

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
_NONE: Mapping[str, str] = {}


class Answer(NamedTuple):
    """What a handler returns; ``body`` None is an answer without one."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = _NONE

    def response(self) -> Response:
        if self.body is None:
            return Response(status_code=self.status, headers=self.headers)
        return Response(orjson.dumps(self.body), self.status, self.headers, media_type=JSON)


def problem_response(problem: Problem) -> Response:
    return Response(orjson.dumps(problem.document()), problem.kind.status, problem.headers, media_type=PROBLEM_JSON)


def etag_of(job_id: int, version: int) -> str:
    """Moves with PUT, PATCH, pause and resume, never with firing."""
    return f'"{job_id:016x}.{version}"'
