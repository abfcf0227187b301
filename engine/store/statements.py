"""Named statements from the ``.sql`` files, and the binding of values to them.

A file holds statements, each after a line ``-- name: verb_noun``; ``:param`` marks a value, ``:rows`` the place of a
batch of ``ROW(…)`` and ``:tuples`` of ``(…)``. Values are rendered here and by the batch builder, nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from engine._native import batch


class Name(str):
    """A name in a statement, such as a day's: letters, digits and underscores only."""

    __slots__ = ()


Scalar = int | str | bytes | float | None
Value = Scalar | Sequence[int] | Sequence[tuple[Scalar, ...]]

# Filled statements are cheapest: 1,000 to 2,000 rows cost half a row's work of 30 rows.
BATCH_ROWS_MAX = 2_000

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAM = re.compile(r":([a-z_]+)")
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,63}")
_COMMENT = re.compile(r"--[^\n]*")


class Statement(NamedTuple):
    """One statement, cut at its parameters: ``texts`` has one more member than ``params``."""

    name: str
    texts: tuple[str, ...]
    params: tuple[str, ...]


def bind(name: str, values: Mapping[str, Value]) -> bytes:
    """The statement with its values in place."""
    statement = statements()[name]
    pieces = [statement.texts[0]]
    for param, text in zip(statement.params, statement.texts[1:], strict=True):
        pieces.append(render(values[param]))
        pieces.append(text)
    return "".join(pieces).encode()


def bind_rows(
    name: str, rows: Sequence[Sequence[object]], values: Mapping[str, Value], bytes_max: int
) -> list[bytes]:
    """The statement once for each batch of rows: at most BATCH_ROWS_MAX rows and ``bytes_max`` bytes in each."""
    statement = statements()[name]
    at = next(i for i, param in enumerate(statement.params) if param in _ROW_OPENERS)
    head = _bound_part(statement, values, 0, at)
    tail = _bound_part(statement, values, at + 1, len(statement.params))
    opener = _ROW_OPENERS[statement.params[at]]
    return batch.build(head, rows, tail, opener, BATCH_ROWS_MAX, bytes_max)


def time_bounds(keys: Iterable[Sequence[Any]]) -> dict[str, int]:
    """``:from_at`` and ``:to_at`` of a statement about these runs (RunKey, or rows that begin as one; at least one):
    their first and their last scheduled time, in milliseconds, inclusive.

    MySQL looks only into the days between two constants; a join with the keys alone would look into every day.
    """
    times = [key[1] for key in keys]
    return {"from_at": min(times), "to_at": max(times)}


def render(value: Value) -> str:
    """A value as SQL text; a sequence of ints, or of tuples, as the inside of ``IN (…)``."""
    if isinstance(value, Name):
        return _checked(value)
    if value is None or isinstance(value, int | str | bytes | float):
        return batch.literal(value).decode("ascii")
    return ",".join(map(_item, value)) or "NULL"


def _item(item: int | tuple[Scalar, ...]) -> str:
    return f"({','.join(map(render, item))})" if isinstance(item, tuple) else str(int(item))


def _checked(name: Name) -> str:
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"not a plain name: {name!r}")
    return name


@cache
def statements() -> Mapping[str, Statement]:
    """Every named statement of every file, by name; a name twice is a mistake of ours."""
    found: dict[str, Statement] = {}
    for path in sorted((Path(__file__).parent / "sql").glob("*.sql")):
        for statement in parse(path.read_text()):
            if statement.name in found:
                raise ValueError(f"{path.name}: statement {statement.name} stands twice")
            found[statement.name] = statement
    return found


def parse(text: str) -> Iterable[Statement]:
    """The statements of one file."""
    names = list(_NAME.finditer(text))
    ends = [match.start() for match in names[1:]] + [len(text)]
    for match, end in zip(names, ends, strict=True):
        body = _COMMENT.sub("", text[match.end() : end])
        pieces = _PARAM.split(" ".join(body.split()).rstrip(";"))
        yield Statement(match[1], tuple(pieces[0::2]), tuple(pieces[1::2]))


def _bound_part(statement: Statement, values: Mapping[str, Value], first: int, last: int) -> bytes:
    pieces = [statement.texts[first]]
    for i in range(first, last):
        pieces.append(render(values[statement.params[i]]))
        pieces.append(statement.texts[i + 1])
    return "".join(pieces).encode()


_ROW_OPENERS = {"rows": b"ROW(", "tuples": b"("}
