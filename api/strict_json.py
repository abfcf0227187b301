"""JSON read strictly: what two readers could take differently is not JSON here.

Beyond the grammar that refuses duplicate keys, NaN and infinities, lone surrogates, invalid UTF-8, a byte order mark
and nesting deeper than DEPTH_MAX.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

# Deeper than anything we define by far, and shallow enough that no reader or writer of it recurses into trouble.
DEPTH_MAX = 64


class NotJson(Exception):  # noqa: N818 - the caller's text, not a mistake of ours
    """The body is not JSON; the message says what is wrong with it."""


def read_json(body: bytes) -> Any:
    """The value of a JSON text; NotJson if it is none in the strict sense."""
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        _check_depth(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NotJson(str(error)) from error
    _KEYS_ONLY.decode(body.decode())
    return value


def _check_depth(body: bytes) -> None:
    """Counts brackets outside strings, without recursion; what is not JSON is left to the parser."""
    depth = 0
    for piece in _outside_strings(body):
        for byte in piece:
            if byte in b"[{":
                depth += 1
                if depth > DEPTH_MAX:
                    raise NotJson(f"nested deeper than {DEPTH_MAX} levels")
            elif byte in b"]}":
                depth -= 1


def _outside_strings(body: bytes) -> list[bytes]:
    """Every second piece between quotes that are not escaped."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return unescaped.split(b'"')[0::2]


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    keys = {key for key, _ in pairs}
    if len(keys) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            raise NotJson(f"the key {json.dumps(key)[:64]} stands twice in one object")
        keys.discard(key)


# A second parse, in C too, that only sees the keys: orjson keeps the last of two equal ones without a word.
_KEYS_ONLY = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_int=len, parse_float=len)
