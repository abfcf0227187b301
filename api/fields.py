"""The types a body is made of: each reads a JSON value, telling every fault, and says its own JSON Schema.

One definition of a field therefore serves the validator and the OpenAPI document alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from api.echo import echo, nearest, pointer_part
from engine.errors import Fault
from engine.rules import durations, timestamps
from engine.rules.durations import format_duration, parse_duration
from engine.rules.timestamps import parse_time

# Any digit but zero after the point, which a whole second does not have.
_FRACTION = re.compile(r"\.[0-9]*[1-9]")

_DIGITS = re.compile("[0-9]{1,9}")


# Fields that are not known are a body's to make up, as many as it has room for: so many are named, and so many compared
# with those there are, which takes as long as reading a whole job.
UNKNOWN_NAMED_MAX = 32
UNKNOWN_COMPARED_MAX = 4


@dataclass(slots=True)
class Reading:
    """One reading of one body: where faults are collected, and the time it is judged by."""

    now_ms: int
    faults: list[Fault] = field(default_factory=list)
    unknown: int = 0

    def fault(self, at: str, detail: str, example: str | None = None) -> None:
        """Note one fault; reading goes on."""
        self.faults.append(Fault(at, detail, example))

    def unknown_field(self, at: str, name: str, words: Iterable[str]) -> None:
        """Note a field that is none of these."""
        self.unknown += 1
        if self.unknown <= UNKNOWN_NAMED_MAX:
            near = nearest(name, words) if self.unknown <= UNKNOWN_COMPARED_MAX else None
            self.fault(f"{at}/{pointer_part(name)}", f"{echo(name)} is no field here", near)
        elif self.unknown == UNKNOWN_NAMED_MAX + 1:
            self.fault(at, "there are more fields that are none; they are not listed")

    @property
    def unknown_told(self) -> bool:
        """Nobody reads of more of them: whoever sent a million has no more of our time."""
        return self.unknown > UNKNOWN_NAMED_MAX


class Field(Protocol):
    """A type of JSON value. ``read`` returns the value as the rest of the program has it, or None after a fault."""

    def read(self, value: Any, at: str, reading: Reading) -> Any: ...

    def schema(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A string of bounded length, optionally of one spelling; ``rule`` says the spelling in words."""

    chars_max: int
    pattern: re.Pattern[str] | None = None
    rule: str = ""
    example: str = ""

    def read(self, value: Any, at: str, reading: Reading) -> str | None:
        if not isinstance(value, str):
            wrong_type(reading, at, "a string", value, self.example)
            return None
        if len(value) > self.chars_max:
            reading.fault(at, f"at most {self.chars_max} characters, not {len(value)}", self.example or None)
        elif self.pattern and not self.pattern.fullmatch(value):
            reading.fault(at, f"{echo(value)} is not {self.rule}", self.example or None)
        else:
            return value
        return None

    def schema(self) -> dict[str, Any]:
        said: dict[str, Any] = {"type": "string", "maxLength": self.chars_max}
        if self.pattern:
            said["pattern"] = f"^{self.pattern.pattern}$"
        return said | _example(self.example)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number between two bounds, both inclusive."""

    low: int
    high: int
    example: int

    def read(self, value: Any, at: str, reading: Reading) -> int | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON has one kind of number: 3.0 is 3
        if not isinstance(value, int) or isinstance(value, bool):
            wrong_type(reading, at, "a whole number", value, str(self.example))
            return None
        if not self.low <= value <= self.high:
            reading.fault(at, f"between {self.low} and {self.high}, not {echo(value)}", str(self.example))
            return None
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high, "examples": [self.example]}


@dataclass(frozen=True, slots=True)
class WholeText:
    """A whole number in a query, where everything is text."""

    low: int
    high: int
    example: int

    def read(self, value: Any, at: str, reading: Reading) -> int | None:
        if _DIGITS.fullmatch(value) and self.low <= int(value) <= self.high:
            return int(value)
        reading.fault(at, f"from {self.low} to {self.high}, not {echo(value)}", str(self.example))
        return None

    def schema(self) -> dict[str, Any]:
        return Whole(self.low, self.high, self.example).schema()


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, value: Any, at: str, reading: Reading) -> bool | None:
        if not isinstance(value, bool):
            wrong_type(reading, at, "true or false", value, "true")
            return None
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, each with what it stands for."""

    words: Mapping[str, Any]

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        example = next(iter(self.words))
        if not isinstance(value, str):
            wrong_type(reading, at, "a string", value, example)
        else:
            words = ", ".join(self.words)
            reading.fault(at, f"{echo(value)} is not one of {words}", nearest(value, self.words) or example)
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}


def choice_of(kind: type[IntEnum]) -> Choice:
    """The members of an enum, in small letters."""
    return Choice({member.name.lower(): member for member in kind})


@dataclass(frozen=True, slots=True)
class Duration:
    """A whole number with ms, s, m, h or d; read as milliseconds."""

    low_ms: int
    high_ms: int
    example: str = durations.EXAMPLE

    def read(self, value: Any, at: str, reading: Reading) -> int | None:
        if not isinstance(value, str):
            wrong_type(reading, at, "a duration such as", value, self.example)
            return None
        try:
            duration_ms = parse_duration(value)
        except ValueError as error:
            reading.fault(at, f"{echo(value)} {error}", self.example)
            return None
        if not self.low_ms <= duration_ms <= self.high_ms:
            reading.fault(
                at,
                f"between {format_duration(self.low_ms)} and {format_duration(self.high_ms)}, not {echo(value)}",
                self.example,
            )
            return None
        return duration_ms

    def schema(self) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": "^[0-9]{1,12}(ms|s|m|h|d)$",
            "description": f"From {format_duration(self.low_ms)} to {format_duration(self.high_ms)}.",
            "examples": [self.example],
        }


@dataclass(frozen=True, slots=True)
class Instant:
    """An RFC 3339 time with an offset; read as milliseconds since the epoch."""

    whole_second: bool = False

    def read(self, value: Any, at: str, reading: Reading) -> int | None:
        if not isinstance(value, str):
            wrong_type(reading, at, "an RFC 3339 time", value, timestamps.EXAMPLE)
            return None
        try:
            at_ms = parse_time(value)
        except ValueError as error:
            reading.fault(at, f"{echo(value)} {error}", timestamps.EXAMPLE)
            return None
        if self.whole_second and _FRACTION.search(value):
            reading.fault(at, f"{echo(value)} is not a whole second", timestamps.EXAMPLE)
            return None
        return at_ms

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time", "examples": [timestamps.EXAMPLE]}


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that is only answered, by its schema."""

    said: Mapping[str, Any]

    def read(self, value: Any, at: str, reading: Reading) -> None:
        return None

    def schema(self) -> dict[str, Any]:
        return dict(self.said)


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Any JSON value of bounded size."""

    bytes_max: int

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        if len(json.dumps(value, ensure_ascii=False).encode()) > self.bytes_max:
            reading.fault(at, f"at most {self.bytes_max} bytes as JSON")
        return value

    def schema(self) -> dict[str, Any]:
        return {}


def wrong_type(reading: Reading, at: str, expected: str, value: Any, example: str | None) -> None:
    reading.fault(at, f"expected {expected}, not {_TYPE_NAMES[type(value)]}", example or None)


_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a truth value",
    type(None): "null",
}


def _example(example: str) -> dict[str, Any]:
    return {"examples": [example]} if example else {}
