"""The types of the client are those of the OpenAPI document: the same keys, required and not."""

from __future__ import annotations

from typing import get_type_hints, is_typeddict

import pytest

from api.calls import CALLS
from api.openapi import document
from secondzero_client import shapes

SCHEMAS = document()["components"]["schemas"]
# Answered whole, by names of the document's own.
SHAPES = {name: shape for name, shape in vars(shapes).items() if is_typeddict(shape) and name in SCHEMAS}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_keys_of_its_schema(name: str) -> None:
    shape, schema = SHAPES[name], SCHEMAS[name]
    assert set(get_type_hints(shape)) <= set(schema["properties"])
    assert shape.__required_keys__ <= set(schema.get("required", []))


def test_what_is_answered_has_a_shape() -> None:
    answered = {name for doc in CALLS.values() for name in doc.answers.values() if not name.endswith("Page")}
    assert answered - set(SHAPES) == set()
