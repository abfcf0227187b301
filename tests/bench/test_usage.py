"""CPU time and memory of processes, held against what the process says of itself."""

import os
import subprocess
import sys
import time

from bench.usage import children, cpu_s, resident_bytes

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def test_cpu_time_is_what_the_process_measures_itself():
    own_s = time.process_time()
    assert abs(cpu_s([os.getpid()]) - own_s) <= 2 * TICK_S


def test_memory_counts_pages_in_use():
    assert 5_000_000 < resident_bytes([os.getpid()]) < 10_000_000_000


def test_children_are_those_that_run_and_a_gone_process_counts_nothing():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in children(os.getpid())
    child.communicate(b"\n")
    assert child.pid not in children(os.getpid())
    assert (children(child.pid), cpu_s([child.pid]), resident_bytes([child.pid])) == ([], 0, 0)
