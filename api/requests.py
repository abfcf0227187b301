"""Requests: the parts of one call, its body within bounds, its query with nothing unknown in it."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from api.errors import (
    BAD_REQUEST,
    INTERNAL,
    NOT_ACCEPTABLE,
    NOT_JSON,
    PRECONDITION_FAILED,
    TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    invalid,
    problem_of,
)
from api.fields import Reading
from api.names import name_faults
from api.records import ListOf, Record
from api.responses import JSON
from api.strict_json import NotJson, read_json
from engine.errors import Fault

if TYPE_CHECKING:
    from api.service import Service

# A target body of 256 KB may need six bytes for each of its own in JSON.
BODY_BYTES_MAX = 2 << 20
# A few milliseconds; what is larger is read in a thread.
PARSED_AT_ONCE_BYTES_MAX = 128 << 10
QUERY_FIELDS_MAX = 64
# Of a body that is refused; who sends more, or sends it slowly, finds the connection closed.
DRAINED_BYTES_MAX, DRAIN_S_MAX = 16 << 20, 5

EMPTY_QUERY = Record("EmptyQuery", {}, lambda given, at, reading: given)

_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]*"')


@dataclass(slots=True)
class Call:
    """One call of the API by one tenant."""

    service: Service
    request: Request
    tenant_id: int
    now_ms: int
    body: bytes = b""
    scope: str = ""
    key_name: str = ""

    @property
    def path(self) -> dict[str, str]:
        return self.request.path_params

    def name(self) -> str:
        """The job's name in the path; 422 with the rule if it cannot be one."""
        name: str = self.request.path_params["name"]
        faults = name_faults(name)
        if faults:
            raise invalid(faults)
        return name

    async def json(self, bytes_max: int = BODY_BYTES_MAX, media_type: str = JSON) -> Any:
        """The body as JSON; 415, 413 or 400 if it is none."""
        check_media_type(self.request, media_type)
        self.body = await read_body(self.request, bytes_max)
        return await self._parsed()

    async def fields(self, record: Record) -> Any:
        """A body of a few fields; where all of them may be left out, so may be the body. 422 with every fault."""
        self.body = await read_body(self.request, BODY_BYTES_MAX)
        if self.body:
            check_media_type(self.request, JSON)
        reading = Reading(self.now_ms)
        read = record.read(await self._parsed() if self.body else {}, "", reading)
        if reading.faults:
            raise invalid(reading.faults)
        return read

    async def _parsed(self) -> Any:
        """Megabytes of brackets take a second: not one in which nobody else is answered."""
        try:
            if len(self.body) > PARSED_AT_ONCE_BYTES_MAX:
                return await asyncio.to_thread(read_json, self.body)
            return read_json(self.body)
        except NotJson as error:
            raise Problem(NOT_JSON, str(error)) from error

    def problem_of_one(self, error: BaseException | None) -> Problem:
        """What one item of a call for several is answered; a mistake of ours is told as an event, not to the caller."""
        if not isinstance(error, Exception):
            raise error or AssertionError("an item without an answer")
        problem = problem_of(error)
        if problem is None:
            self.service.events.emit("api.failed", request_id="item", path=self.request.scope["path"], error=error)
            problem = Problem(INTERNAL, "this item failed; it is on record here")
        return problem

    def query(self, record: Record) -> Any:
        """The query's parameters; 422 for every one that is wrong or not known here, 400 for what is no query at all.

        A parameter of a list type may be given more than once; of any other the last one counts.
        """
        lists = {name for name, slot in record.slots.items() if isinstance(slot.field, ListOf)}
        given = {name: values if name in lists else values[-1] for name, values in self.raw_query().items()}
        reading = Reading(self.now_ms)
        read = record.read(given, "", reading)
        if reading.faults:
            raise invalid(Fault("?" + fault.pointer[1:], fault.detail, fault.example) for fault in reading.faults)
        return read

    def raw_query(self) -> dict[str, list[str]]:
        """The query as it was written."""
        text = self.request.scope["query_string"].decode("latin-1")
        if not text:
            return {}
        try:
            pairs = parse_qsl(
                text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
            )
        except ValueError as error:
            raise Problem(BAD_REQUEST, f"the query is malformed: {error}") from error
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return found


class Incoming:
    """A request as it comes in, which knows whether its body has been read to the end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._ended = not message.get("more_body", False)
        return message

    async def drain(self, headers: Headers) -> None:
        """Read on, within bounds, what nobody wants: on a connection that is closed before, the answer may be lost."""
        if "expect" in headers or ("transfer-encoding" not in headers and headers.get("content-length", "0") == "0"):
            return
        left = DRAINED_BYTES_MAX
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while not self._ended and left > 0:
                    left -= len((await self()).get("body", b""))


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The body, never more of it than the bound."""
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:18]) > bytes_max:
        raise _too_large(bytes_max)
    parts, length = [], 0
    try:
        async for part in request.stream():
            length += len(part)
            if length > bytes_max:
                raise _too_large(bytes_max)
            parts.append(part)
    except ClientDisconnect as error:  # nobody is there to read the answer
        raise Problem(BAD_REQUEST, "the body ended early") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(bytes_max: int) -> Problem:
    return Problem(TOO_LARGE, f"at most {bytes_max} bytes")


def check_media_type(request: Request, expected: str) -> None:
    """415 unless the body is said to be JSON, or nothing is said; other charsets and encodings are refused."""
    given = request.headers.get("content-type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(UNSUPPORTED_MEDIA_TYPE, "the body must not be encoded", headers={"Accept-Encoding": "identity"})
    if given is None:
        return
    media_type, _, parameters = given.partition(";")
    charset = re.search(r'charset="?([^";\s]+)', parameters, re.IGNORECASE) if parameters else None
    if media_type.strip().lower() != expected:
        raise Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {expected}", headers={"Accept": expected})
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise Problem(UNSUPPORTED_MEDIA_TYPE, "JSON is in UTF-8", headers={"Accept": expected})


def check_acceptable(request: Request, offered: str) -> None:
    """406 unless the Accept header admits what would be answered."""
    accept = request.headers.get("accept")
    if accept is None or accept in ("*/*", offered):
        return
    kind = offered.partition("/")[0]
    weights = [_range_weight(part) for part in accept.split(",")]
    for wanted in (offered, f"{kind}/*", "*/*"):
        for media_range, weight in weights:
            if media_range == wanted:
                if weight > 0:
                    return
                break
    raise Problem(NOT_ACCEPTABLE, f"this is answered as {offered}")


def _range_weight(text: str) -> tuple[str, float]:
    media_range, _, parameters = text.partition(";")
    weight = re.search(r"\bq=([0-9.]+)", parameters)
    try:
        return media_range.strip().lower(), float(weight[1]) if weight else 1.0
    except ValueError:
        return media_range.strip().lower(), 1.0


def check_preconditions(request: Request, etag: str | None) -> None:
    """412 unless If-Match and If-None-Match hold; ``etag`` is None where there is nothing yet."""
    if_match = _etags(request, "if-match")
    if if_match is not None and not (etag is not None if if_match == ["*"] else etag in if_match):
        raise Problem(PRECONDITION_FAILED, "there is no such job" if etag is None else f"the job's ETag is {etag}")
    if_none_match = _etags(request, "if-none-match")
    if if_none_match is not None and etag is not None:
        weak = [tag.removeprefix("W/") for tag in if_none_match]
        if if_none_match == ["*"] or etag in weak:
            raise Problem(PRECONDITION_FAILED, f"the job exists, its ETag is {etag}")


def _etags(request: Request, header: str) -> list[str] | None:
    """The entity tags of a header, ["*"], or None where it is absent; 400 if it is malformed."""
    values = request.headers.getlist(header)
    if not values:
        return None
    tags = [tag.strip() for tag in ",".join(values).split(",") if tag.strip()]
    if tags != ["*"] and not (tags and all(_ETAG.fullmatch(tag) for tag in tags)):
        raise Problem(BAD_REQUEST, f'{header} must be * or a list of quoted ETags such as "0192a4.3"')
    return tags
