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
    marks = _outside_strings(body)
    if marks.count(b"[") + marks.count(b"{") > DEPTH_MAX:
        _check_depth(marks)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NotJson(str(error)) from error
    # orjson keeps the last of two equal keys without a word: then what it has read has fewer keys than the text.
    if marks.count(b":") != _outside_strings(orjson.dumps(value)).count(b":"):
        _KEYS_ONLY.decode(body.decode())
    return value


def _outside_strings(body: bytes) -> bytes:
    """All that stands between strings: every second piece between quotes that are not escaped."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    return b"".join(unescaped.split(b'"')[0::2])


def _check_depth(marks: bytes) -> None:
    """Counts brackets, without recursion; what is not JSON is left to the parser."""
    depth = 0
    for bracket in marks.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_MAX:
            raise NotJson(f"nested deeper than {DEPTH_MAX} levels")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    keys = {key for key, _ in pairs}
    if len(keys) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            raise NotJson(f"the key {json.dumps(key)[:64]} stands twice in one object")
        keys.discard(key)


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# A second parse, which only sees the keys and names the one that stands twice.
_KEYS_ONLY = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_int=len, parse_float=len)
