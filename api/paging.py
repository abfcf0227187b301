"""Pages: their size, and tokens that say where the next one begins, signed and bound to tenant, list and filter."""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, NamedTuple

import orjson

from api.errors import BAD_REQUEST, Problem
from api.fields import Text, WholeText
from api.records import Slot
from api.requests import Call

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1_000
SIGNATURE_BYTES = 16
TOKEN_CHARS_MAX = 1_024

PAGE_SLOTS = {
    "page_size": Slot(WholeText(1, PAGE_SIZE_MAX, PAGE_SIZE), "How many entries at most.", default=PAGE_SIZE),
    "page_token": Slot(Text(TOKEN_CHARS_MAX), "The `next_page_token` of the page before, with the same filter."),
}


class Page(NamedTuple):
    """Which page is asked for; ``position`` is None for the first."""

    size: int
    position: Any


def page_of(call: Call, given: dict[str, Any]) -> Page:
    """The page that the parameters ask for; 400 if the token is not one of this very list and filter."""
    token = given.get("page_token")
    return Page(given.get("page_size", PAGE_SIZE), None if token is None else _read_token(call, token))


def next_page_token(call: Call, position: Any) -> str | None:
    """A token for the page that begins after this position; None for None: there is no further page."""
    if position is None:
        return None
    raw = orjson.dumps(position)
    return urlsafe_b64encode(raw + _signature(call, raw)).decode().rstrip("=")


def _read_token(call: Call, token: str) -> Any:
    try:
        raw = urlsafe_b64decode((token + "=" * (-len(token) % 4)).encode("ascii"))
        position, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _signature(call, position)):
            raise ValueError
        return orjson.loads(position)
    except (ValueError, binascii.Error) as error:
        raise Problem(BAD_REQUEST, "the page token is not one of this list and filter") from error


def _signature(call: Call, position: bytes) -> bytes:
    filters = sorted([name, *values] for name, values in call.raw_query().items() if name not in PAGE_SLOTS)
    signed = orjson.dumps([call.tenant_id, call.request.scope["path"], filters, position.hex()])
    return hmac.digest(call.service.placement.derived_key("page token"), signed, "sha256")[:SIGNATURE_BYTES]
