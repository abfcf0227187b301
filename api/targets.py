"""What a job calls, as tenants write and read it: an HTTP request, or a function of theirs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.echo import echo, pointer_part
from api.fields import AnyValue, Choice, Flag, Reading, Text
from api.job_reading import JobReading
from api.records import Named, OneOf, Record, Slot
from engine.model import FunctionTarget, HeaderValue, HttpTarget
from engine.rules.headers import header_faults, is_secret
from engine.rules.target_text import URL_BYTES_MAX, Refusal, read_target

BODY_BYTES_MAX = 256 * 1024
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
URL_EXAMPLE = "https://example.com/hooks/nightly"


@dataclass(frozen=True, slots=True)
class Url:
    """A target's address, judged by its text alone."""

    def read(self, value: Any, at: str, reading: Reading) -> str | None:
        judge = reading.judge_url if isinstance(reading, JobReading) else read_target
        text: str | None = Text(URL_BYTES_MAX, example=URL_EXAMPLE).read(value, at, reading)
        if text is not None:
            target = judge(text)
            if not isinstance(target, Refusal):
                return text
            reading.fault(at, target.for_tenant, URL_EXAMPLE)
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "uri", "maxLength": URL_BYTES_MAX, "examples": [URL_EXAMPLE]}


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes in base64 (RFC 4648, with padding)."""

    def read(self, value: Any, at: str, reading: Reading) -> bytes | None:
        text: str | None = Text(BODY_BYTES_MAX * 4 // 3 + 4, example="AAEC").read(value, at, reading)
        if text is None:
            return None
        try:
            return _within_bounds(base64.b64decode(text, validate=True), at, reading)
        except (binascii.Error, ValueError):
            reading.fault(at, f"{echo(text)} is not base64 with padding", "AAEC")
            return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64", "examples": ["AAEC"]}


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body that is text, bounded in bytes."""

    def read(self, value: Any, at: str, reading: Reading) -> bytes | None:
        text = Text(BODY_BYTES_MAX).read(value, at, reading)
        return None if text is None else _within_bounds(text.encode(), at, reading)

    def schema(self) -> dict[str, Any]:
        return Text(BODY_BYTES_MAX).schema()


@dataclass(frozen=True, slots=True)
class Header:
    """A header's value: a string, or an object for a secret one."""

    def read(self, value: Any, at: str, reading: Reading) -> HeaderValue | str | None:
        """A string stays one: whether it is a secret depends on the header's name."""
        if isinstance(value, str):
            return value
        read: HeaderValue | None = SECRET_HEADER.read(value, at, reading)
        return read

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [{"type": "string"}, SECRET_HEADER.schema()]}


@dataclass(frozen=True, slots=True)
class Headers:
    """All headers of a call, sorted by name: their order in JSON means nothing."""

    named = Named(Text(128, example="X-Order-Id"), Header(), entries_max=64)

    def read(self, value: Any, at: str, reading: Reading) -> tuple[tuple[str, HeaderValue], ...]:
        headers = {
            name: HeaderValue(read, is_secret(name)) if isinstance(read, str) else read
            for name, read in self.named.read(value, at, reading).items()
            if read is not None
        }
        reading.faults += header_faults([(name, read.value) for name, read in headers.items()], at)
        return tuple(sorted(headers.items()))

    def schema(self) -> dict[str, Any]:
        return self.named.schema()


def show_target(target: HttpTarget | FunctionTarget, fingerprint: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(target, FunctionTarget):
        return {"function": {"name": target.name, "payload": target.payload}}
    shown: dict[str, Any] = {
        "url": target.url,
        "method": target.method,
        "headers": {name: _show_header(name, value, fingerprint) for name, value in target.headers},
    }
    if target.body is not None and target.body_is_text:
        shown["body"] = target.body.decode()
    elif target.body is not None:
        shown["body_base64"] = base64.b64encode(target.body).decode()
    return {"http": shown}


def _show_header(name: str, value: HeaderValue, fingerprint: Callable[[str], str]) -> Any:
    """So that it is read back as it is."""
    if value.sealed_by:  # it cannot be opened, so nobody can say what it is
        return {"secret": True}
    if value.secret:
        return {"secret": True, "fingerprint": fingerprint(value.value)}
    return {"value": value.value, "secret": False} if is_secret(name) else value.value


def _build_http_target(given: dict[str, Any], at: str, reading: Reading) -> HttpTarget:
    if "body" in given and "body_base64" in given:
        reading.fault(f"{at}/body_base64", "body and body_base64 exclude each other")
    return HttpTarget(
        url=given["url"],
        method=given.get("method", "POST"),
        headers=given.get("headers", ()),
        body=given.get("body", given.get("body_base64")),
        body_is_text="body_base64" not in given,
    )


def _within_bounds(body: bytes, at: str, reading: Reading) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        reading.fault(at, f"at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    return body


def _build_secret_header(given: dict[str, Any], at: str, reading: Reading) -> HeaderValue | None:
    if given["secret"] is not True and "value" in given:
        return HeaderValue(given["value"])
    if "value" in given:
        return HeaderValue(given["value"], secret=True)
    kept = _kept_secret(at, given.get("fingerprint"), reading)
    if kept is None:
        reading.fault(at, "needs a value, or the fingerprint of the value that is stored")
    return kept


def _kept_secret(at: str, fingerprint: str | None, reading: Reading) -> HeaderValue | None:
    """The stored value of the same header, if it has this fingerprint."""
    if fingerprint is None or not isinstance(reading, JobReading) or reading.stored is None:
        return None
    target = reading.stored.target
    for name, value in target.headers if isinstance(target, HttpTarget) else ():
        same_header = at.endswith(f"/{pointer_part(name)}")
        if same_header and value.secret and not value.sealed_by and reading.fingerprint(value.value) == fingerprint:
            return value
    return None


FUNCTION_NAME = Text(
    128, re.compile("[A-Za-z_][A-Za-z0-9._-]{0,127}"), "a function's name: letters, digits and ._-", "send_report"
)

SECRET_HEADER = Record(
    "SecretHeader",
    {
        "value": Slot(Text(8_192), "The value; answered never again."),
        "secret": Slot(Flag(), required=True),
        "fingerprint": Slot(Text(64), "What is answered instead of the value; sent back, it keeps the value."),
    },
    _build_secret_header,
    "A header whose value is written and never read. Authorization, Cookie, X-Api-Key and the like are secret unless"
    " `secret` is false.",
)

HTTP_TARGET = Record(
    "HttpTarget",
    {
        "url": Slot(Url(), required=True),
        "method": Slot(Choice({method: method for method in HTTP_METHODS}), default="POST"),
        "headers": Slot(Headers()),
        "body": Slot(BodyText(), "Sent as it is, in UTF-8; no Content-Type is added."),
        "body_base64": Slot(Base64(), "The body's bytes, where it is no text."),
    },
    _build_http_target,
    "An HTTP call.",
)

FUNCTION_TARGET = Record(
    "FunctionTarget",
    {
        "name": Slot(FUNCTION_NAME, required=True),
        "payload": Slot(AnyValue(BODY_BYTES_MAX), "Any JSON value, handed to the function."),
    },
    lambda given, at, reading: FunctionTarget(given["name"], given.get("payload")),
    "A function on one of the tenant's own workers.",
)

TARGET = OneOf(
    "Target",
    {
        "http": Record(
            "TargetHttp", {"http": Slot(HTTP_TARGET, required=True)}, lambda given, at, reading: given["http"]
        ),
        "function": Record(
            "TargetFunction",
            {"function": Slot(FUNCTION_TARGET, required=True)},
            lambda given, at, reading: given["function"],
        ),
    },
)
