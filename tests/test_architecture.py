"""What the code base promises about itself: layers, clocks, SQL in files, worded events, twins of native code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.log import WORDING
from engine.store.statements import statements

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "api", "migrations", "bench")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Imports go down only. The longest matching prefix counts.
LAYERS = {
    "engine._native": 0,
    "engine": 1,
    "engine.rules": 2,
    "engine.store": 3,
    "engine.history": 3,
    "engine.outbound": 3,
    "engine.local": 3,
    "engine.stages": 4,
    "engine.node": 5,
    "engine.executor": 5,
    "engine.keeper": 5,
    "engine.recorder": 5,
    "engine.health_app": 5,
    "engine.__main__": 6,
    "engine.commands": 6,
    "api": 5,
    "migrations": 5,
    "bench": 7,
}
# Each of these does I/O with one technology and knows nothing of the others.
STRANGERS = ("engine.store", "engine.history", "engine.outbound", "engine.local")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int | None:
    while module:
        if module in LAYERS:
            return LAYERS[module]
        module = module.rpartition(".")[0]
    return None


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_go_down_only(path: Path) -> None:
    module, own = module_of(path), layer_of(module_of(path))
    assert own is not None
    for imported in imports_of(path):
        layer = layer_of(imported)
        assert layer is None or layer <= own, f"{module} (layer {own}) imports {imported} (layer {layer})"
        for stranger in STRANGERS:
            foreign = imported.startswith(stranger) and not module.startswith(stranger)
            assert not (foreign and module.startswith(STRANGERS)), f"{module} imports {imported}"


ASKS_THE_MACHINE = re.compile(
    r"\btime\.(time|monotonic|perf_counter|clock_gettime)(_ns)?\(|datetime\.(now|utcnow|today)\("
)
# Programs that are no part of the engine read the clock themselves: local processes are waited for, benches measured.
MAY_ASK = ("engine/clock.py", "engine/local/", "bench/")


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_only_the_clock_asks_the_machine_for_the_time(path: Path) -> None:
    if not str(path.relative_to(ROOT)).startswith(MAY_ASK):
        assert not ASKS_THE_MACHINE.search(path.read_text())


SQL = re.compile(
    r"^\s*(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s.+\sSET|DELETE\s+(\w+\s+)?FROM|REPLACE\s+INTO)\b", re.I | re.S
)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_sql_stands_in_sql_files(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] == "bench":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            assert not SQL.match(text), f"line {node.lineno}: {text[:60]!r}"


def test_every_named_statement_is_used_and_every_used_one_is_there() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    # A name made of parts (`add_day_to_{table}`) counts for every statement that it can name.
    patterns = [re.sub(r"\{[^}]*\}", "*", text) for text in re.findall(r'f"([a-z_{}]*\{[^"]*)"', code)]
    shapes = [re.compile(re.escape(pattern).replace(r"\*", "[a-z_]*")) for pattern in patterns if pattern.strip("*")]
    unused = [
        name for name in statements() if f'"{name}"' not in code and not any(shape.fullmatch(name) for shape in shapes)
    ]
    assert unused == []
    used = re.findall(r'\.(?:execute|execute_rows|fetch_rows)\(\s*"([a-z_]+)"', code)
    assert sorted(set(used) - set(statements())) == []


def test_every_event_has_a_wording_and_every_wording_an_event() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    emitted = set(re.findall(r'\.emit\(\s*"([a-z_.]+)"', code))
    assert emitted - set(WORDING) == set()
    assert set(WORDING) - emitted == set()


@pytest.mark.parametrize("pyx", sorted((ROOT / "engine/_native").glob("*.pyx")), ids=lambda path: path.stem)
def test_every_native_module_has_a_stub_and_tests_with_a_slow_twin(pyx: Path) -> None:
    assert pyx.with_suffix(".pyi").exists()
    tests = [path.read_text() for path in TESTS if path.name.startswith(f"test_{pyx.stem}")]
    assert tests
    assert any("twin" in text or "slow" in text for text in tests)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_sleep_nowhere_but_in_their_support(path: Path) -> None:
    if "support" in path.parts or path == Path(__file__):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep"):
            assert ast.unparse(node.args[0]) == "0", f"line {node.lineno}"


LINES_MAX = 50


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LINES_MAX, f"{node.name} at line {node.lineno}"
