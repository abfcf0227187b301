"""The page about the benches names each of them, and only options that there are."""

import re
import subprocess
import sys
from pathlib import Path

from engine.commands.bench import BENCHMARKS

README = (Path(__file__).parent.parent.parent / "bench" / "README.md").read_text()


def test_every_bench_is_on_the_page():
    assert [name for name in BENCHMARKS if f"| `{name}" not in README] == []


def test_every_option_on_the_page_is_an_option():
    asked = {
        (name, option)
        for name, rest in re.findall(r"`(\w+)( --[^`]+)`", README)
        for option in re.findall(r"--\w+", rest)
    }
    for name in {name for name, _ in asked}:
        command = [sys.executable, "-m", "engine", "bench", name, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert [option for bench, option in asked if bench == name and option not in shown] == []
