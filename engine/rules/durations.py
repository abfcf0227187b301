"""Durations as text: a whole number with ms, s, m, h or d. Milliseconds inside."""

from __future__ import annotations

import re
from functools import lru_cache

EXAMPLE = "30s"

_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> int:
    """Milliseconds; ValueError says what was expected."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("is not a whole number followed by ms, s, m, h or d")
    return int(found[1]) * _UNIT_MS[found[2]]


@lru_cache(maxsize=4_096)
def format_duration(duration_ms: int) -> str:
    """The spelling people use: the largest unit that divides it, but 60s and 24h rather than 1m and 1d."""
    for unit, least in (("d", 2), ("h", 1), ("m", 2), ("s", 1)):
        count, rest_ms = divmod(duration_ms, _UNIT_MS[unit])
        if rest_ms == 0 and count >= least:
            return f"{count}{unit}"
    return f"{duration_ms}ms" if duration_ms else "0s"
