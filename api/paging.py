"""Pages: their size, and tokens that say where the next one begins, signed and bound to tenant, list and filter."""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from api.errors import BAD_REQUEST, Problem, invalid
from api.fields import echo
from api.requests import Call
from engine.errors import Fault

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1_000
SIGNATURE_BYTES = 16
TOKEN_CHARS_MAX = 1_024
PARAMETERS = ("page_size", "page_token")


def page_size(query: Mapping[str, Sequence[str]]) -> int:
    """How many entries are wanted; 422 if that is no number within bounds."""
    text = query.get("page_size", [str(PAGE_SIZE)])[-1]
    if text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= PAGE_SIZE_MAX:
        return int(text)
    raise invalid([Fault("?page_size", f"from 1 to {PAGE_SIZE_MAX}, not {echo(text)}", str(PAGE_SIZE))])


def read_token(call: Call, query: Mapping[str, Sequence[str]]) -> Any:
    """The position a token stands for, None on the first page; 400 if the token is not one of this very list."""
    if "page_token" not in query:
        return None
    token = query["page_token"][-1]
    try:
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            raise ValueError
        raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        position, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _signature(call, query, position)):
            raise ValueError
        return orjson.loads(position)
    except (ValueError, binascii.Error) as error:
        raise Problem(BAD_REQUEST, "the page token is not one of this list and filter") from error


def make_token(call: Call, query: Mapping[str, Sequence[str]], position: Any) -> str:
    """A token for the page that begins after this position."""
    raw = orjson.dumps(position)
    return urlsafe_b64encode(raw + _signature(call, query, raw)).decode().rstrip("=")


def _signature(call: Call, query: Mapping[str, Sequence[str]], position: bytes) -> bytes:
    filters = sorted((name, *values) for name, values in query.items() if name not in PARAMETERS)
    signed = orjson.dumps([call.tenant_id, call.request.url.path, filters, position.decode()])
    return hmac.digest(call.service.placement.derived_key("page token"), signed, "sha256")[:SIGNATURE_BYTES]
