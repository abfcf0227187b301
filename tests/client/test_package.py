"""What the tenants' package promises about itself: it stands alone, is typed, and needs little."""

from __future__ import annotations

import ast
from importlib.metadata import requires
from pathlib import Path

import pytest

import secondzero_client

ROOT = Path(__file__).parent.parent.parent / "client" / "secondzero_client"
SOURCES = sorted(ROOT.glob("*.py"))
OURS = {"engine", "api", "migrations", "bench", "tests"}
LINES_MAX = 50


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_imports_nothing_of_the_service(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not {name.partition(".")[0] for name in names} & OURS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LINES_MAX, node.name


def test_it_is_typed_and_needs_little() -> None:
    assert (ROOT / "py.typed").exists()
    assert [need.partition(">")[0].partition("<")[0] for need in requires("secondzero-client") or []] == ["httpx"]


def test_what_it_exports_is_there() -> None:
    assert [name for name in secondzero_client.__all__ if not hasattr(secondzero_client, name)] == []
