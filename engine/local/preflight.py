"""Names everything that a build needs and this machine lacks, in one message, before anything is half done.

Run by `make build` with the machine's own Python, before there is a virtual environment: the standard library only, in
words that an older Python understands. `--packages` prints just the names of the packages to install.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator

PYTHON_MIN = (3, 11)
COMPILE_S_MAX = 60
PROGRAM = b"#include <time.h>\nint main(void) { return 0; }\n"


def main() -> int:
    missing = list(find_missing())
    packages = sorted({package for _, package in missing if package})
    if "--packages" in sys.argv:
        print(*packages)
    elif missing:
        print(message(missing, packages), file=sys.stderr)
    return 1 if missing else 0


def message(missing: list[tuple[str, str | None]], packages: list[str]) -> str:
    lines = ["Second Zero cannot be built here yet. Missing:"]
    lines += [f"  * {what}" + (f" (package {package})" if package else "") for what, package in missing]
    if packages:
        lines.append(f"On Debian and Ubuntu: sudo apt-get install {' '.join(packages)}")
    return "\n".join(lines)


def find_missing() -> Iterator[tuple[str, str | None]]:
    """What is missing, each with the package that brings it, or None where a package cannot help."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not sys.platform.startswith("linux"):
        yield "Linux: the engine pins its processes and ties their lives together with its means", None
    if sys.version_info[:2] < PYTHON_MIN:
        newer = f"Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer, this is {version}; where another is installed: "
        yield newer + "make PYTHON=python3.12", "python3"
        return
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        yield "Python's venv module", f"python{version}-venv"
    yield from _missing_for_compiling(version)


def _missing_for_compiling(version: str) -> Iterator[tuple[str, str | None]]:
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        yield "Python's C headers", f"python{version}-dev"
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0]) or shutil.which("gcc")
    if compiler is None:
        yield "a C compiler", "build-essential"
    elif not _compiles(compiler):
        yield f"the C library's headers, without which {compiler} compiles nothing", "build-essential"


def _compiles(compiler: str) -> bool:
    done = subprocess.run(
        [compiler, "-x", "c", "-", "-o", os.devnull], input=PROGRAM, capture_output=True, timeout=COMPILE_S_MAX
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
