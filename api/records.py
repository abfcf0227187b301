"""The types that are made of others: lists, objects with the caller's names, records with ours, one of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.echo import pointer_part
from api.fields import Field, Reading, Text, wrong_type


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
            wrong_type(reading, at, "an object", value, "{}")
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
            wrong_type(reading, at, "a list", value, "[]")
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
            wrong_type(reading, at, "an object", value, None)
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
        given: dict[str, Any] = {}
        seen: set[str] = set()
        for name in value:
            if name not in self.slots:
                reading.unknown_field(at, name, self.slots)
                if reading.unknown_told:
                    break
                continue
            seen.add(name)
            self._read_slot(name, value[name], at, reading, given)
        for name in self.slots:
            if name in value and name not in seen:
                self._read_slot(name, value[name], at, reading, given)
        return given

    def _read_slot(self, name: str, item: Any, at: str, reading: Reading, given: dict[str, Any]) -> None:
        slot = self.slots[name]
        if not slot.shown_only:
            given[name] = slot.field.read(item, f"{at}/{name}", reading)

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
            wrong_type(reading, at, "an object", value, None)
            return None
        present = [key for key in self.kinds if key in value]
        if len(present) == 1:
            return self.kinds[present[0]].read(value, at, reading)
        reading.fault(at, f"exactly one of {' and '.join(self.kinds)} must be given", None)
        slots = [name for kind in self.kinds.values() for name in kind.slots]
        for name in value:
            if name not in slots:
                reading.unknown_field(at, name, slots)
                if reading.unknown_told:
                    break
        return None

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [kind.schema() for kind in self.kinds.values()]}


def example_of(kind: Field) -> str | None:
    """A value that works, as text."""
    examples = kind.schema().get("examples")
    return str(examples[0]) if examples else None


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
