"""Redaction: what an endpoint echoes of its job's secrets is taken out of an answer before any of it is kept.

Looked for are the whole value of a secret header and each longer part of it (the token after `Bearer`, one cookie, user
and password of `Basic`), as they are, as JSON, URLs and HTML spell them, and in base64, plain and for URLs, wherever in
a longer text they stand. What else an endpoint may make of a secret nobody can know.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

PLACEHOLDER = b"[secret]"
# A part of a value this short says little, and would be found everywhere.
PART_CHARS_MIN = 6
# So many characters of base64 are found by chance once in 16 million places.
BASE64_CHARS_MIN = 4

_SCHEME = re.compile(r"[A-Za-z]+ +")
_BETWEEN = re.compile(r"[\s;,]+")
_BASIC = re.compile(r"basic +([A-Za-z0-9+/=_-]+)", re.IGNORECASE)

Span = tuple[int, int]


def spellings(values: Iterable[str]) -> list[bytes]:
    """Every text that tells one of these secret values."""
    texts = {text.encode() for value in values for text in _texts(value)}
    return sorted({spelling for text in texts for spelling in _spellings(text)})


def redacted(answer: bytes, secrets: Sequence[bytes], bytes_max: int) -> bytes:
    """The first ``bytes_max`` bytes of an answer without these spellings of secrets.

    An answer that long may have been cut inside a secret, whose beginning is then taken out as well.
    """
    spans = [span for secret in secrets for span in _found(answer, secret)]
    if len(answer) >= bytes_max:
        spans += [span for secret in secrets if (span := _begun(answer, secret))]
    return _without(answer, _merged(spans))[:bytes_max] if spans else answer


def _texts(value: str) -> Iterator[str]:
    """A value and its parts, but for the name of a scheme and those of cookies."""
    value = value.strip()
    basic = _BASIC.fullmatch(value)
    for whole in filter(None, (value, _decoded(basic[1]) if basic else "")):
        yield whole
        for part in _BETWEEN.split(_SCHEME.sub("", whole, count=1)):
            yield from (text for text in (part, *re.split("[=:]", part, maxsplit=1)[1:]) if len(text) >= PART_CHARS_MIN)


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_") + "==").decode()
    except ValueError:
        return ""


def _spellings(text: bytes) -> Iterator[bytes]:
    as_text = text.decode()
    escaped = json.dumps(as_text)[1:-1]
    yield text
    yield escaped.encode()
    yield escaped.replace("/", "\\/").encode()
    yield quote(as_text, safe="").encode()
    yield quote(as_text).encode()
    yield html.escape(as_text).encode()
    for offset in range(3):
        core = _base64_core(text, offset)
        if len(core) >= BASE64_CHARS_MIN:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _base64_core(text: bytes, offset: int) -> bytes:
    """Those characters of base64 that depend on the text alone, where it begins ``offset`` bytes into a group."""
    encoded = base64.b64encode(bytes(offset) + text)
    return encoded[(offset * 8 + 5) // 6 : (offset + len(text)) * 8 // 6]


def _found(answer: bytes, secret: bytes) -> Iterator[Span]:
    at = answer.find(secret)
    while at >= 0:
        yield at, at + len(secret)
        at = answer.find(secret, at + 1)


def _begun(answer: bytes, secret: bytes) -> Span | None:
    """Where the longest beginning of a secret stands at the end."""
    at = answer.find(secret[:1], max(0, len(answer) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(answer[at:]):
            return at, len(answer)
        at = answer.find(secret[:1], at + 1)
    return None


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _without(answer: bytes, spans: Sequence[Span]) -> bytes:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [answer[at:start], PLACEHOLDER]
        at = end
    return b"".join([*pieces, answer[at:]])
