"""The types a body is made of: each reads a JSON value, telling every fault, and says its own JSON Schema.

One definition of a field therefore serves the validator and the OpenAPI document alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, Protocol

from engine.errors import Fault
from engine.rules import durations, timestamps
from engine.rules.durations import format_duration, parse_duration
from engine.rules.timestamps import parse_time

# Any digit but zero after the point, which a whole second does not have.
_FRACTION = re.compile(r"\.[0-9]*[1-9]")
_DIGITS = re.compile("[0-9]{1,9}")

# What comes back from the caller's own text is cut to this and escaped, so that an answer or log stays readable.
ECHO_CHARS_MAX = 64
# A pointer names a key of the caller's; no key we know is longer.
POINTER_CHARS_MAX = 128


@dataclass(slots=True)
class Reading:
    """One reading of one body: where faults are collected, and the time it is judged by."""

    now_ms: int
    faults: list[Fault] = field(default_factory=list)

    def fault(self, at: str, detail: str, example: str | None = None) -> None:
        """Note one fault; reading goes on."""
        self.faults.append(Fault(at, detail, example))


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
            _wrong_type(reading, at, "a string", value, self.example)
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
            _wrong_type(reading, at, "a whole number", value, str(self.example))
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
            _wrong_type(reading, at, "true or false", value, "true")
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
            _wrong_type(reading, at, "a string", value, example)
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
            _wrong_type(reading, at, "a duration such as", value, self.example)
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
            _wrong_type(reading, at, "an RFC 3339 time", value, timestamps.EXAMPLE)
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


@dataclass(frozen=True, slots=True)
class ReadLater:
    """A value that is read by itself, elsewhere; here only its schema is known."""

    field: Field

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return self.field.schema()


@dataclass(frozen=True, slots=True)
class Named:
    """An object with names of the caller's choosing, each with a value of one type."""

    key: Text
    value: Field
    entries_max: int

    def read(self, value: Any, at: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(value, dict):
            _wrong_type(reading, at, "an object", value, "{}")
            return {}
        if len(value) > self.entries_max:
            reading.fault(at, f"at most {self.entries_max} entries, not {len(value)}")
            return {}
        found = {}
        for key, item in value.items():
            where = f"{at}/{pointer_part(key)}"
            self.key.read(key, where, reading)
            found[key] = self.value.read(item, where, reading)
        return found

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": self.key.schema(),
            "additionalProperties": self.value.schema(),
            "maxProperties": self.entries_max,
        }


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of one type."""

    item: Field
    items_max: int
    items_min: int = 0

    def read(self, value: Any, at: str, reading: Reading) -> list[Any]:
        if not isinstance(value, list):
            _wrong_type(reading, at, "a list", value, "[]")
            return []
        if not self.items_min <= len(value) <= self.items_max:
            reading.fault(at, f"between {self.items_min} and {self.items_max} items, not {len(value)}")
            return []
        return [self.item.read(value[i], f"{at}/{i}", reading) for i in range(len(value))]

    def schema(self) -> dict[str, Any]:
        return {
            "type": "array",
            "items": self.item.schema(),
            "minItems": self.items_min,
            "maxItems": self.items_max,
        }


@dataclass(frozen=True, slots=True)
class Slot:
    """A field's place in a record. ``shown_only`` fields are answered, and ignored when they are sent back."""

    field: Field
    says: str = ""
    required: bool = False
    default: Any = None
    shown_only: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """An object with fixed fields. ``build`` makes the value of what was given; it runs only on complete, sound fields.

    Reading returns what ``build`` returns, or None after a fault.
    """

    name: str
    slots: Mapping[str, Slot]
    build: Callable[[dict[str, Any], str, Reading], Any]
    says: str = ""

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        if not isinstance(value, dict):
            _wrong_type(reading, at, "an object", value, None)
            return None
        faults_before = len(reading.faults)
        given = self._read_given(value, at, reading)
        for name, slot in self.slots.items():
            if slot.required and name not in value:
                reading.fault(f"{at}/{name}", f"{name} is missing", example_of(slot.field))
        if len(reading.faults) > faults_before:
            return None
        built = self.build(given, at, reading)
        return built if len(reading.faults) == faults_before else None

    def _read_given(self, value: dict[str, Any], at: str, reading: Reading) -> dict[str, Any]:
        given = {}
        for name, item in value.items():
            slot = self.slots.get(name)
            if slot is None:
                reading.fault(f"{at}/{pointer_part(name)}", f"{echo(name)} is no field here", nearest(name, self.slots))
            elif not slot.shown_only:
                given[name] = slot.field.read(item, f"{at}/{name}", reading)
        return given

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/components/schemas/{self.name}"}

    def definition(self) -> dict[str, Any]:
        """The schema itself, which ``schema`` only points at."""
        said: dict[str, Any] = {
            "type": "object",
            "properties": {name: _slot_schema(slot) for name, slot in self.slots.items()},
            "additionalProperties": False,
        }
        required = [name for name, slot in self.slots.items() if slot.required]
        return said | ({"required": required} if required else {}) | ({"description": self.says} if self.says else {})


@dataclass(frozen=True, slots=True)
class OneOf:
    """An object that is one of several records, told apart by which one's key it has."""

    name: str
    kinds: Mapping[str, Record]

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        if not isinstance(value, dict):
            _wrong_type(reading, at, "an object", value, None)
            return None
        present = [key for key in self.kinds if key in value]
        if len(present) == 1:
            return self.kinds[present[0]].read(value, at, reading)
        reading.fault(at, f"exactly one of {' and '.join(self.kinds)} must be given", None)
        for name in value:
            if not any(name in kind.slots for kind in self.kinds.values()):
                near = nearest(name, [name for kind in self.kinds.values() for name in kind.slots])
                reading.fault(f"{at}/{pointer_part(name)}", f"{echo(name)} is no field here", near)
        return None

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [kind.schema() for kind in self.kinds.values()]}


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
    folded = {known.casefold(): known for known in words}
    close = get_close_matches(word[:ECHO_CHARS_MAX].casefold(), folded, n=1)
    return folded[close[0]] if close else None


def example_of(kind: Field) -> str | None:
    """A value that works, as text."""
    examples = kind.schema().get("examples")
    return str(examples[0]) if examples else None


def _wrong_type(reading: Reading, at: str, expected: str, value: Any, example: str | None) -> None:
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


def _slot_schema(slot: Slot) -> dict[str, Any]:
    said = slot.field.schema()
    extra: dict[str, Any] = {}
    if slot.says:
        extra["description"] = slot.says if "description" not in said else f"{slot.says} {said['description']}"
    if slot.default is not None:
        extra["default"] = slot.default
    if slot.shown_only:
        extra["readOnly"] = True
    return said | extra
