"""The OpenAPI 3.1 document, made of the records that validate and of what api/calls.py says of each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from api import runs, work
from api.answers import ANSWERS, ref
from api.calls import CALLS, ONCE, Doc
from api.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    IN_PROGRESS,
    INTERNAL,
    INVALID,
    NOT_ACCEPTABLE,
    NOT_JSON,
    TOO_LARGE,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Kind,
)
from api.fields import Field
from api.job_patch import MERGE_PATCH_JSON
from api.names import NAME
from api.operator_calls import OPERATOR_ANSWERS, OPERATOR_CALLS
from api.operators import TENANT_NAME
from api.records import ListOf, Named, OneOf, ReadLater, Record, Slot
from api.responses import JSON, PROBLEM_JSON
from api.targets import SECRET_HEADER, Headers

VERSION = "1.0"

Calls = Mapping[tuple[str, str], Doc]

_ALWAYS = (BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_ACCEPTABLE, TOO_MANY_REQUESTS, INTERNAL, UNAVAILABLE)
_WITH_BODY = (NOT_JSON, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID)

_HEADERS = {
    "If-Match": "Only if the job's ETag is one of these, or `*`: if there is a job.",
    "If-None-Match": "`*`: only if there is no job yet.",
    "Idempotency-Key": "The same call sent again with this key within 24 hours has no second effect.",
}


_IN_PATH: dict[str, Any] = {
    "name": NAME.schema(),
    "token": work.TOKEN_SCHEMA,
    "scheduled_at": {
        "type": "string", "pattern": f"^{runs.PATH_TIME.pattern}$", "examples": ["2030-01-31T09:00:00Z"],
    },
    "tenant": TENANT_NAME.schema(),
    "key": {"type": "string", "description": "The key's `id`."},
}  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The whole document; the same for every caller."""
    says = (
        "at and cron as a service: name a job, give it a time or a cron expression and an endpoint, and it is called at"
        " that second, once per scheduled time, with retries, history and proof."
    )
    return _document("Second Zero", says, "An API key, `sz_…`.", CALLS, ANSWERS)


@cache
def operator_document() -> dict[str, Any]:
    """The same for the operators' listener."""
    says = "Tenants, their keys, and the brakes. On a listener of its own (`--admin-port`); each use is on record."
    key = "A key of operators: `secondzero key create --operators` makes one."
    return _document("Second Zero for operators", says, key, OPERATOR_CALLS, OPERATOR_ANSWERS)


def _document(title: str, says: str, key: str, calls: Calls, answers: Mapping[str, Any]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), doc in calls.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, doc)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": VERSION, "description": says},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": key}},
            "schemas": _schemas(calls, answers),
        },
    }


def _operation(path: str, doc: Doc) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": doc.name,
        "summary": doc.summary,
        "tags": [doc.tag],
        "parameters": _parameters(path, doc),
        "responses": _responses(doc),
    }
    if doc.says:
        operation["description"] = doc.says
    if doc.open:
        operation["security"] = []
    if doc.body is not None:
        content: dict[str, Any] = {"schema": _body_schema(doc)}
        if doc.example is not None:
            content["example"] = doc.example
        operation["requestBody"] = {"required": doc.body_required, "content": {doc.body_media: content}}
    return operation


def _body_schema(doc: Doc) -> dict[str, Any]:
    """A merge patch may leave out and set to null whatever it likes."""
    assert doc.body is not None  # noqa: S101 - asked only where there is one
    return {"type": "object"} if doc.body_media == MERGE_PATCH_JSON else doc.body.schema()


def _parameters(path: str, doc: Doc) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _IN_PATH.items()
        if f"{{{name}}}" in path
    ]
    for name, slot in doc.query.slots.items() if doc.query else ():
        found.append(_parameter(name, slot))
    for name in doc.headers:
        schema = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"} if name in ONCE else {"type": "string"}
        found.append({"name": name, "in": "header", "schema": schema, "description": _HEADERS[name]})
    return found


def _parameter(name: str, slot: Slot) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name, "in": "query", "schema": slot.field.schema()}
    if slot.default is not None:
        said["schema"] = said["schema"] | {"default": slot.default}
    return said | ({"description": slot.says} if slot.says else {})


def _responses(doc: Doc) -> dict[str, Any]:
    said = {
        str(status): {
            "description": "Done." if status < 500 else "Not all of it.",
            "content": {JSON: {"schema": ref(name)}},
        }
        for status, name in doc.answers.items()
    }
    if doc.open:
        return said
    kinds = {*_ALWAYS, *doc.problems, *(_WITH_BODY if doc.body is not None else ())}
    kinds |= {IN_PROGRESS} if ONCE[0] in doc.headers else set()
    by_status: dict[int, list[Kind]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.name)):
        by_status.setdefault(kind.status, []).append(kind)
    for status, of_status in by_status.items():
        titles = "; or: ".join(kind.title for kind in of_status)
        said[str(status)] = {"description": f"{titles}.", "content": {PROBLEM_JSON: {"schema": ref("Problem")}}}
    return said


def _schemas(calls: Calls, answers: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for doc in calls.values():
        for record in _records(doc.body):
            found[record.name] = record.definition()
    return dict(sorted((found | dict(answers)).items()))


def _records(field: Field | None) -> Iterator[Record]:
    """Every record that a field is made of."""
    if isinstance(field, Record):
        yield field
        for slot in field.slots.values():
            yield from _records(slot.field)
    elif isinstance(field, OneOf):
        for kind in field.kinds.values():
            yield from _records(kind)
    elif isinstance(field, Named):
        yield from _records(field.value)
    elif isinstance(field, ListOf):
        yield from _records(field.item)
    elif isinstance(field, ReadLater):
        yield from _records(field.field)
    elif isinstance(field, Headers):
        yield SECRET_HEADER
