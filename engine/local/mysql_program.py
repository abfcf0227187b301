"""Which mysqld to start: one of this machine if it will do, else a private copy from the distribution's packages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import OperatorError
from engine.local import apt
from engine.rules.server import version_problem

# Debian keeps daemons out of a user's PATH.
_DAEMON_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/usr/local/mysql/bin")
_ANSWER_S_MAX = 30


@dataclass(frozen=True, slots=True)
class Program:
    """How one mysqld is started; `name` tells it from others: its path, or `private`."""

    name: str
    command: tuple[str, ...]


Finder = Callable[[apt.Say], Program]


def installed_program(say: apt.Say) -> Program:
    """The mysqld on PATH. Raises OperatorError, saying why it will not do."""
    path = next(
        filter(None, (shutil.which("mysqld", path=folders) for folders in (None, ":".join(_DAEMON_FOLDERS)))), None
    )
    if path is None:
        raise OperatorError("no mysqld on PATH")
    problem = version_problem(_version_text([path]))
    if problem:
        raise OperatorError(f"{path} will not do: {problem}")
    return Program(path, (path, "--no-defaults"))


def private_program(say: apt.Say) -> Program:
    """The private copy, fetched on first use."""
    root = apt.fetch(["mysql-server-core"], say=say)
    command = (*apt.loader_command(root, "usr/sbin/mysqld"), "--no-defaults", *_folders_of(root))
    problem = version_problem(_version_text(list(command)))
    if problem:
        raise OperatorError(f"the packaged mysqld will not do: {problem}")
    return Program("private", command)


FINDERS: tuple[Finder, ...] = (installed_program, private_program)


def _version_text(command: list[str]) -> str:
    """`mysqld --version` without its path: `Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)`."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"{command[0]} --version: {error}") from error
    return done.stdout.partition(" Ver ")[2].strip() or (done.stdout + done.stderr).strip()[:200]


def _folders_of(root: Path) -> tuple[str, ...]:
    return (
        f"--basedir={root}/usr",
        f"--lc-messages-dir={root}/usr/share/mysql",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
    )
