"""Named statements of history.cql, with the words in braces filled in."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")


def statement(name: str, **words: object) -> str:
    """The text of a statement. The words are names and numbers of ours or checked ones, never a caller's values."""
    text = _texts()[name]
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", str(value))
    return text


@cache
def _texts() -> dict[str, str]:
    _, *parts = _NAME.split((files("engine.history") / "history.cql").read_text())
    return {name: " ".join(_COMMENT.sub("", body).split()) for name, body in zip(parts[::2], parts[1::2], strict=True)}
