"""SECURITY.md promises nothing that is not tested."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", TEXT)))
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_exists(name):
    assert re.search(rf"^(?:async )?def {name}\(", TESTS, re.MULTILINE)


def test_every_line_of_every_table_of_defences_names_its_tests():
    rows = [line for line in TEXT.partition("## What holds it")[2].splitlines() if line.startswith("| ")]
    told = [row for row in rows if not row.startswith("| what | how | test")]
    assert len(told) > 20
    assert [row for row in told if "`test_" not in row] == []


SILENCED = re.compile(r"# noqa: [A-Z0-9, ]*\bS\d{3}\b(?! - |.* - )")
SOURCES = [
    path
    for folder in ("engine", "api", "bench", "migrations", "client", "perf")
    for path in (ROOT / folder).rglob("*.py")
]


def test_no_security_rule_of_ruff_is_silenced_without_a_reason():
    lines = [(path.name, line) for path in SOURCES for line in path.read_text().splitlines()]
    assert [found for found in lines if SILENCED.search(found[1])] == []
    settings = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff.lint]")[2].partition("[tool.mypy]")[0]
    assert [line for line in settings.splitlines() if re.search(r'"S\d', line) and "# " not in line] == []
