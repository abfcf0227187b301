"""A caller's own text in our answers: escaped, cut short, beside the word that was probably meant."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

# What comes back from the caller's own text is cut to this and escaped, so that an answer or log stays readable.
ECHO_CHARS_MAX = 64

# No word of ours is longer; comparing costs the product of both lengths.
WORD_CHARS_MAX = 32

# A pointer names a key of the caller's; no key we know is longer.
POINTER_CHARS_MAX = 128


def echo(value: Any) -> str:
    """A caller's value for a message: as JSON, in ASCII, without markup, cut to ECHO_CHARS_MAX."""
    text = json.dumps(value if isinstance(value, str) else str(value)[: 2 * ECHO_CHARS_MAX])
    text = text.translate({ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"})
    return text if len(text) <= ECHO_CHARS_MAX else text[: ECHO_CHARS_MAX - 4] + '..."'


def pointer_part(key: str) -> str:
    """A key as part of a JSON pointer (RFC 6901), cut where it is longer than any we know."""
    return key[:POINTER_CHARS_MAX].replace("~", "~0").replace("/", "~1")


def nearest(word: str, words: Any) -> str | None:
    """The known word most like the one given, if one is like it."""
    if len(word) > WORD_CHARS_MAX:
        return None
    folded = {known.casefold(): known for known in words}
    close = get_close_matches(word.casefold(), folded, n=1)
    return folded[close[0]] if close else None
