"""A build that does not fit the source is refused with what to do."""

from pathlib import Path

import pytest

import engine._native
from engine._native import ABI, require


def test_every_compiled_module_is_checked() -> None:
    folder = Path(engine._native.__file__).parent
    assert {path.stem for path in folder.glob("*.pyi")} == set(ABI)


def test_a_stale_build_is_refused() -> None:
    with pytest.raises(ImportError, match=r"engine\._native\.wheel is built with ABI \d+, not 0: run make build"):
        require({"wheel": 0})


def test_a_missing_build_is_refused() -> None:
    with pytest.raises(ImportError, match=r"engine\._native\.nothing is not built: run make build"):
        require({"nothing": 1})
