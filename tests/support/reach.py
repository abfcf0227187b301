"""Which named statements a part of the product can reach: followed from its entry through functions and classes.

A class counts whole. What is reached through an attribute of an unknown object is found because its class is named
wherever such an object is made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from engine.store.statements import statements

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "api", "migrations")

Place = tuple[str, str]
"""A module and a name in it."""


def statements_of(entries: Iterable[Place], without: Collection[Place] = ()) -> set[str]:
    """The statements that these functions and classes can run, without passing through some others."""
    open_places, seen, found = list(entries), set(without), set()
    while open_places:
        place = open_places.pop()
        if place in seen:
            continue
        seen.add(place)
        for node in _definitions(place[0]).get(place[1], []):
            found |= _named(node)
            open_places += _references(place[0], node)
    return found


@cache
def _tree(module: str) -> ast.Module | None:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text()) if module.startswith(PACKAGES) and file.exists() else None


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """Functions, classes and constants by name."""
    found: dict[str, list[ast.stmt]] = {}
    tree = _tree(module)
    for node in tree.body if tree else []:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                found.setdefault(ast.unparse(target), []).append(node)
    return found


@cache
def _imports(module: str) -> dict[str, Place]:
    tree = _tree(module)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)] if tree else []
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in nodes for alias in node.names}


def _references(module: str, definition: ast.stmt) -> list[Place]:
    found = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            found.append(_resolved(module, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            package, name = _resolved(module, node.value.id)
            if _tree(f"{package}.{name}"):
                found.append(_resolved(f"{package}.{name}", node.attr))
    return found


def _resolved(module: str, name: str) -> Place:
    """Where a name comes from, through any number of imports."""
    while name not in _definitions(module) and name in _imports(module):
        module, name = _imports(module)[name]
    return module, name


def _named(definition: ast.stmt) -> set[str]:
    """The statements whose names stand in it, whole or made of parts (`add_day_to_{table}`)."""
    found = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Constant) and node.value in statements():
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
            shape = re.escape("".join(map(str, parts))).replace(r"\*", "[a-z_]*")
            if "_" in shape.replace("[a-z_]*", ""):
                found |= {name for name in statements() if re.fullmatch(shape, name)}
    return found
