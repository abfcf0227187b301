"""/openapi.json, and /docs: the same document as one page of plain HTML that asks no other host for anything."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.calls import JOB_EXAMPLE
from api.errors import KINDS
from api.openapi import document, operator_document
from api.requests import check_acceptable
from api.responses import JSON
from api.service import Service

# The page has no script, loads nothing and sends nothing.
SECURITY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HTML = "text/html"


async def openapi_json(service: Service, request: Request) -> Response:
    """GET /openapi.json"""
    check_acceptable(request, JSON)
    return Response(_document_bytes(), media_type=JSON)


async def operator_openapi_json(service: Service, request: Request) -> Response:
    """GET /openapi.json of the operators' listener"""
    check_acceptable(request, JSON)
    return Response(_operator_document_bytes(), media_type=JSON)


async def docs(service: Service, request: Request) -> Response:
    """GET /docs"""
    check_acceptable(request, HTML)
    return Response(_page(), headers={"Content-Security-Policy": SECURITY}, media_type=HTML)


@cache
def _document_bytes() -> bytes:
    return orjson.dumps(document())


@cache
def _operator_document_bytes() -> bytes:
    return orjson.dumps(operator_document())


@cache
def _page() -> bytes:
    said = document()
    calls = [(method, path, call) for path, by_method in said["paths"].items() for method, call in by_method.items()]
    parts = {
        "DESCRIPTION": _text(said["info"]["description"]),
        "JOB_EXAMPLE": _text(json.dumps(JOB_EXAMPLE)),
        "PROBLEMS": _table(("status", "type", "title"), [(kind.status, kind.type, kind.title) for kind in KINDS]),
        "CALLS": _contents(calls) + "".join(part for call in calls for part in _call(*call)),
        "OBJECTS": "".join(part for each in said["components"]["schemas"].items() for part in _schema(*each)),
    }
    page = (Path(__file__).parent / "docs.html").read_text()
    return re.sub("|".join(parts), lambda found: parts[found[0]], page).encode()


def _contents(calls: Sequence[tuple[str, str, Mapping[str, Any]]]) -> str:
    lines = [
        f'<li><a href="#{call["operationId"]}">{method.upper()} {_text(path)}</a> {_text(call["summary"])}</li>'
        for method, path, call in calls
    ]
    return f"<ul>{''.join(lines)}</ul>"


def _call(method: str, path: str, call: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section id="{call["operationId"]}"><h3>{method.upper()} {_text(path)}</h3><p>{_text(call["summary"])}.'
    yield f" {_text(call.get('description', ''))}</p>"
    if call["parameters"]:
        rows = [(each["name"], each["in"], _type(each["schema"]), _says(each)) for each in call["parameters"]]
        yield _table(("parameter", "in", "type", ""), rows)
    if "requestBody" in call:
        ((media, content),) = call["requestBody"]["content"].items()
        yield f"<p>Body: <code>{media}</code>, {_type(content['schema'])}</p>"
        if "example" in content:
            yield f"<pre>{_text(json.dumps(content['example'], indent=2))}</pre>"
    answers = [
        (status, _type(next(iter(each["content"].values()))["schema"]), _text(each["description"]))
        for status, each in call["responses"].items()
    ]
    yield _table(("status", "answer", ""), answers) + "</section>"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section id="{name}"><h3>{name}</h3><p>{_text(schema.get("description", ""))}</p>'
    required = schema.get("required", ())
    rows = [
        (_text(key) + (" *" if key in required else ""), _type(each), _says(each))
        for key, each in schema.get("properties", {}).items()
    ]
    yield _table(("field", "type", ""), rows) + "</section>"


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to the objects it is made of."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if "oneOf" in schema:
        return " or ".join(map(_type, schema["oneOf"]))
    if "enum" in schema:
        return " · ".join(f"<code>{_text(json.dumps(word))}</code>" for word in schema["enum"])
    kind = schema.get("type", "any value")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return _text(f"{kind} {schema.get('format', '')}".strip())


def _says(said: Mapping[str, Any]) -> str:
    """The description, the bounds, the default and an example."""
    schema = said.get("schema", said)
    parts = [_text(said.get("description", ""))]
    if "minimum" in schema and "maximum" in schema:
        parts.append(f"From {schema['minimum']} to {schema['maximum']}.")
    if "default" in schema:
        parts.append(f"Default <code>{_text(json.dumps(schema['default']))}</code>.")
    if schema.get("examples"):
        parts.append(f"Such as <code>{_text(str(schema['examples'][0]))}</code>.")
    if schema.get("readOnly"):
        parts.append("Answered only; ignored when it is sent.")
    return " ".join(part for part in parts if part)


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(text: str) -> str:
    return html.escape(text)
