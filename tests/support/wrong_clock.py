"""An engine whose host has a wrong wall clock: ``python -m tests.support.wrong_clock FILE engine …``.

FILE holds by how many milliseconds it is off, and may change at any time. Time since boot runs on, as it does when a
clock is stepped.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path


def main() -> int:
    with Path(sys.argv[1]).open("rb") as file:
        offset = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    true_ns = time.time_ns
    time.time_ns = lambda: true_ns() + int.from_bytes(offset[:], "little", signed=True) * 1_000_000
    # Only now: the clock is taken when the engine's modules are loaded.
    from engine.__main__ import main as engine

    return engine(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
