"""What a build lacks is named at once, before anything is begun."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from engine.local import preflight

SCRIPT = Path(preflight.__file__)
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])


def without_venv(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(preflight.importlib.util, "find_spec", lambda name: None)


def without_headers(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(preflight.sysconfig, "get_paths", lambda: {"include": str(folder)})


def without_compiler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(preflight.shutil, "which", lambda name: None)


def without_c_library(patch: pytest.MonkeyPatch, folder: Path) -> None:
    compiler = folder / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    patch.setenv("CC", str(compiler))


@pytest.mark.parametrize(
    ("remove", "package"),
    [
        (without_venv, f"python{VERSION}-venv"),
        (without_headers, f"python{VERSION}-dev"),
        (without_compiler, "build-essential"),
        (without_c_library, "build-essential"),
    ],
)
def test_each_missing_thing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], remove, package: str
) -> None:
    remove(monkeypatch, tmp_path)
    assert preflight.main() == 1
    said = capsys.readouterr().err
    assert said.count("  * ") == 1
    assert said.endswith(f"sudo apt-get install {package}\n")


def test_everything_missing_is_in_one_message_and_one_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for remove in (without_venv, without_headers, without_compiler):
        remove(monkeypatch, tmp_path)
    assert preflight.main() == 1
    command = f"sudo apt-get install build-essential python{VERSION}-dev python{VERSION}-venv"
    assert capsys.readouterr().err.splitlines()[-1] == f"On Debian and Ubuntu: {command}"


def test_an_old_python_is_told_how_to_choose_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert preflight.main() == 1
    assert "Python 3.11 or newer, this is 3.9" in capsys.readouterr().err


def test_the_script_is_read_by_an_old_python_and_needs_nothing_installed() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    command = [sys.executable, "-I", "-S", str(SCRIPT), "--packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("\n", "")
