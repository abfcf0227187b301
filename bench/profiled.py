"""Where a process spends its time while a block runs: py-spy's samples of Python and native frames together."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import OperatorError
from engine.local.process import spawn

SAMPLES_PER_S = 400
WRITE_S_MAX = 120


@contextmanager
def profiled(pid: int, file: Path | None) -> Iterator[None]:
    """A flame graph for a name that ends in .svg, else stacks with their counts, one a line; nothing without a file."""
    if file is None:
        yield
        return
    sampler = _start(pid, file)
    try:
        yield
    finally:
        if sampler.poll() is None:
            sampler.send_signal(signal.SIGINT)
        sampler.wait(WRITE_S_MAX)
    if not file.exists():
        raise OperatorError(
            f"py-spy wrote no profile: {_said(file)} (it must be allowed to trace: root, or ptrace_scope 0)"
        )


def _start(pid: int, file: Path) -> subprocess.Popen[bytes]:
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if program is None:
        raise OperatorError("py-spy is not installed: pip install 'secondzero[bench]'")
    kind = "flamegraph" if file.suffix == ".svg" else "raw"
    command = [program, "record", "--native", "--nolineno", "--rate", str(SAMPLES_PER_S), "--format", kind]
    file.unlink(missing_ok=True)
    with _log(file).open("wb") as log:
        return spawn([*command, "--output", str(file), "--pid", str(pid)], log, signal.SIGKILL)


def _log(file: Path) -> Path:
    return file.with_name(file.name + ".log")


def _said(file: Path) -> str:
    lines = _log(file).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
