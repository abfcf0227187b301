"""Which mysqld is started."""

from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.local import mysql_program as module
from engine.local.mysql_program import installed_program


def silent(line: str) -> None:
    pass


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(module, "_DAEMON_FOLDERS", (str(tmp_path / "sbin"),))
    (tmp_path / "sbin").mkdir()
    return tmp_path


def fake_program(path: Path, output: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)


@pytest.mark.parametrize("folder", [".", "sbin"])
def test_a_mysqld_on_path_or_among_the_daemons_is_taken_without_its_settings_file(
    path_folder: Path, folder: str
) -> None:
    path = path_folder / folder / "mysqld"
    fake_program(path, "/usr/sbin/mysqld  Ver 8.0.36-0ubuntu0.22.04.1 for Linux on x86_64 ((Ubuntu))")
    program = installed_program(silent)
    assert Path(program.name).samefile(path)
    assert program.command == (program.name, "--no-defaults")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)", "it is MariaDB"),
        ("mysqld  Ver 5.7.44 for Linux on x86_64 (MySQL Community Server (GPL))", "it is MySQL 5.7.44"),
        ("mysqld: error while loading shared libraries: libaio.so.1", "it calls itself"),
    ],
)
def test_one_that_will_not_do_is_named_with_the_reason(path_folder: Path, output: str, said: str) -> None:
    fake_program(path_folder / "mysqld", output)
    with pytest.raises(OperatorError, match=f"mysqld will not do: {said}"):
        installed_program(silent)


def test_none_at_all_is_said_in_a_few_words(path_folder: Path) -> None:
    with pytest.raises(OperatorError, match=r"^no mysqld on PATH$"):
        installed_program(silent)
