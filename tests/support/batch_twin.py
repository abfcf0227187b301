"""The batch builder's slow twin, the specification of `engine/_native/batch.pyx`: rules one by one, nothing clever."""

import math
import re
from collections.abc import Sequence

PLAIN = re.compile(r"[ -&(-\[\]-~]*")  # printable ASCII but for the quote and the backslash
PACKET_BYTES = 16


def literal(value: object) -> bytes:
    if value is None:
        return b"NULL"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError("64 bits")
        return str(int(value)).encode()
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("finite")
        digits = repr(value).removesuffix(".0")
        return (digits if "e" in digits else digits + "e0").encode()
    if isinstance(value, bytes):
        return b"X'" + value.hex().upper().encode() + b"'"
    if isinstance(value, str):
        return f"_utf8mb4'{value}'".encode() if PLAIN.fullmatch(value) else b"_utf8mb4 " + literal(value.encode())
    raise TypeError("kind")


def build(
    head: bytes, rows: Sequence[Sequence[object]], tail: bytes, row_open: bytes, rows_max: int, bytes_max: int
) -> list[bytes]:
    refuse_mixed_columns(rows)
    statements: list[list[bytes]] = []
    for row in rows:
        text = row_open + b",".join(map(literal, row)) + b")"
        if not statements or len(statements[-1]) == rows_max or size(head, [*statements[-1], text], tail) > bytes_max:
            statements.append([])
        statements[-1].append(text)
        if size(head, statements[-1], tail) > bytes_max:
            raise ValueError("too large")
    return [head + b",".join(texts) + tail for texts in statements]


def size(head: bytes, texts: list[bytes], tail: bytes) -> int:
    return len(head + b",".join(texts) + tail) + PACKET_BYTES


def refuse_mixed_columns(rows: Sequence[Sequence[object]]) -> None:
    if len({len(row) for row in rows}) > 1:
        raise ValueError("lengths")
    for column in zip(*rows, strict=True):
        if len({int if isinstance(value, bool) else type(value) for value in column if value is not None}) > 1:
            raise TypeError("mixed")
