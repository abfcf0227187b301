"""`python -m tests.fuzz SECONDS [TARGET…]`: each target for so long, and how often it was tried."""

from __future__ import annotations

import sys

from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS


def main(seconds: float, names: list[str]) -> None:
    for name in names or TARGETS:
        print(f"{name:12} {run(TARGETS[name], seconds):>10,} executions in {seconds:g} s, nothing found", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
