"""Debian and Ubuntu packages for this user alone: no root, and nothing of the machine's own package state touched.

apt works on a configuration of its own: an empty status file (so that it counts nothing as installed and brings every
library along), its own lists and cache, and the distribution's archive as the only source. It checks the archive's
signatures itself. What it downloads is unpacked, not installed: no maintainer script runs. Programs are started
through the unpacked loader, because they may need a newer libc than the machine has.

    <cache>/packages/<archive>/<names>/        a complete root: put there by one rename
    <cache>/packages/<archive>/<names>.part/   a download under way, or left by one that was killed: apt goes on there
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.errors import OperatorError
from engine.local.apt_sources import Archive, machine_archive

Say = Callable[[str], None]

# A stalled mirror gives up by itself after 30 s (see _CONFIG); this bounds a mirror that trickles.
DOWNLOAD_S_MAX = 1800
STEP_S_MAX = 300
# Progress lines are this far apart, so that a log stays short.
PROGRESS_STEP_PERCENT = 20

_CONFIG = """\
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::State::lists "{state}/lists";
Dir::Cache "{state}/cache";
Dir::Cache::archives "{state}/archives";
Dir::Etc::sourcelist "{state}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Log "{state}/log";
Debug::NoLocking "true";
APT::Sandbox::User "";
APT::Install-Recommends "false";
APT::Status-Fd "1";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


_ENVIRONMENT = os.environ | {"LC_ALL": "C.UTF-8"}  # error lines are searched for "E: "


def say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def fetch(
    packages: Sequence[str], *, cache: Path | None = None, archive: Archive | None = None, say: Say = say_on_stderr
) -> Path:
    """The root folder in which the packages and all they need are unpacked; downloads them unless it stands already.

    One process downloads, others wait for it. Raises OperatorError in one line when apt, the archive or the disk fails.
    """
    archive = archive or machine_archive()
    root = (cache or user_cache()) / "packages" / archive.label / "+".join(sorted(packages))
    if root.is_dir():
        return root
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with only_one(root.with_name(root.name + ".lock"), say):
            if not root.is_dir():
                _download_and_unpack(packages, archive, root, say)
    except OSError as error:
        raise OperatorError(f"cannot keep packages in {root.parent}: {error.strerror or error}") from error
    return root


def loader_command(root: Path, program: str) -> list[str]:
    """The command that starts a program of an unpacked root (`usr/sbin/mysqld`) with the root's own libraries."""
    folders = [root / "usr/lib", root / "lib"]
    folders += [found for folder in list(folders) for found in sorted(folder.glob("*-linux-gnu*"))]
    # The real files before the links of lib64: in older packages those links are absolute and leave the root.
    holders = [*reversed(folders), root / "usr/lib64"]
    loaders = [found for folder in holders for found in sorted(folder.glob("ld-*.so*"))]
    if not loaders:
        raise OperatorError(f"{root} holds no program loader: remove the folder and try again")
    return [str(loaders[0]), "--library-path", ":".join(map(str, reversed(folders))), str(root / program)]


def user_cache() -> Path:
    """The user's cache folder, shared by all checkouts."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "secondzero"


@contextmanager
def only_one(lock: Path, say: Say) -> Iterator[None]:
    """Holds the lock file. Waits without a bound of its own: the holder's work is bounded, and death lets go."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is downloading the same packages: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download_and_unpack(packages: Sequence[str], archive: Archive, root: Path, say: Say) -> None:
    part = root.with_name(root.name + ".part")
    state = part / "apt"
    config = _write_config(state, archive)
    say(f"getting {' '.join(packages)} from {archive.uri} (once for all checkouts)")
    _apt(["update"], config)
    _apt(["autoclean"], config)  # what a killed download left there may be of an older version by now
    names = [_name_there(name, config) for name in packages]
    _apt(["install", "--yes", "--download-only", *names], config, _Progress(say))
    unpacked = part / "root"
    shutil.rmtree(unpacked, ignore_errors=True)
    _unpack(sorted((state / "archives").glob("*.deb")), unpacked, say)
    os.sync()  # or a power cut could leave the finished name with unwritten files behind it
    unpacked.rename(root)
    shutil.rmtree(part)


def _write_config(state: Path, archive: Archive) -> Path:
    for folder in ("lists/partial", "archives/partial", "cache", "log"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").write_text("")
    (state / "sources.list").write_text("".join(f"{line}\n" for line in archive.lines()))
    config = state / "apt.conf"
    config.write_text(_CONFIG.format(state=state))
    return config


def _name_there(name: str, config: Path) -> str:
    """The name itself, or its newest numbered form: Ubuntu has `mysql-server-core-8.0` only."""
    known = _run(["apt-cache", "--config-file", str(config), "pkgnames", name], STEP_S_MAX).split()
    numbered = [found for found in known if found.removeprefix(name + "-").replace(".", "").isdigit()]
    if name in known or not numbered:
        return name
    return max(numbered, key=lambda found: [int(part) for part in found.removeprefix(name + "-").split(".")])


def _apt(arguments: list[str], config: Path, on_line: Say | None = None) -> None:
    _run(["apt-get", "--config-file", str(config), "-q", *arguments], DOWNLOAD_S_MAX, on_line)


def _unpack(archives: list[Path], into: Path, say: Say) -> None:
    say(f"unpacking {len(archives)} packages")
    for archive in archives:
        try:
            _run(["dpkg-deb", "--extract", str(archive), str(into)], STEP_S_MAX)
        except OperatorError:
            archive.unlink()  # damaged on disk: apt brings it again next time
            raise


class _Progress:
    """Turns apt's status lines (`dlstatus:17:30.4:Retrieving file 17 of 56 (3s remaining)`) into a few for people."""

    def __init__(self, say: Say) -> None:
        self._say, self._next_percent = say, float(PROGRESS_STEP_PERCENT)

    def __call__(self, line: str) -> None:
        kind, _, rest = line.partition(":")
        fields = rest.split(":", 2)
        if kind != "dlstatus" or len(fields) != 3 or float(fields[1]) < self._next_percent:
            return
        self._next_percent = float(fields[1]) + PROGRESS_STEP_PERCENT
        self._say(f"  {float(fields[1]):.0f} %: {fields[2].strip()}")


def _run(command: list[str], seconds_max: float, on_line: Say | None = None) -> str:
    """The program's output. Raises OperatorError in the program's own words when it fails or takes too long."""
    with tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=_ENVIRONMENT
            )
        except FileNotFoundError as error:
            raise OperatorError(f"{command[0]} is not on this machine, so packages cannot be fetched") from error
        output = _read_to_end(process, seconds_max, on_line)
        if process.returncode:
            errors.seek(0)
            raise OperatorError(f"{command[0]} failed: {_why(errors.read().splitlines(), process.returncode)}")
        return output


def _read_to_end(process: subprocess.Popen[str], seconds_max: float, on_line: Say | None) -> str:
    watchdog = threading.Timer(seconds_max, process.kill)
    watchdog.start()
    lines = []
    with process:
        for line in process.stdout or ():
            lines.append(line)
            if on_line:
                on_line(line)
    watchdog.cancel()
    return "".join(lines)


def _why(errors: list[str], status: int) -> str:
    said = [line for line in errors if line.startswith("E: ")] or [line for line in errors if line.strip()]
    return said[0].removeprefix("E: ").strip() if said else f"exit status {status}"
