"""Child processes: they die with their parent, keep their log and are stopped within a bound."""

import os
import signal
import subprocess
import sys

from engine.local.process import end_child, spawn
from tests.support.wait import until

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def started(code: str, log, **options) -> subprocess.Popen:
    with log.open("ab") as output:
        child = spawn([sys.executable, "-c", code], output, signal.SIGKILL, **options)
    until(log.read_text)
    return child


def test_a_child_dies_with_its_parent_even_when_that_is_killed(tmp_path):
    code = (
        "import signal, sys; from engine.local.process import spawn;"
        f"child = spawn([sys.executable, '-c', {SLEEPER!r}], open({str(tmp_path / 'log')!r}, 'wb'), signal.SIGKILL);"
        "print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        child_pid = int(parent.stdout.readline())
        until((tmp_path / "log").read_text)
        assert not gone(child_pid)
        parent.kill()
    until(lambda: gone(child_pid))


def test_a_download_dies_with_whoever_asked_for_it(tmp_path):
    """It would write into the folder in which the next one begins it anew."""
    log = tmp_path / "log"
    tool = f"import os, time; open({str(log)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import sys; from engine.local.java import run_tool; run_tool([sys.executable, '-c', {tool!r}], 600)"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        pid = int(until(lambda: log.exists() and log.read_text()))
        assert not gone(pid)
        parent.kill()
    until(lambda: gone(pid))


def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path):
    assert end_child(started(STUBBORN, tmp_path / "log"), 0.05) == -signal.SIGKILL


def test_output_is_appended_to_the_log(tmp_path):
    for word in ("one", "two"):
        started(f"print('{word}')", tmp_path / "log").wait(20)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_ctrl_c_reaches_only_the_parent(tmp_path):
    child = started(SLEEPER, tmp_path / "log")
    try:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        end_child(child, 5)


def test_a_child_gets_the_environment_and_the_sockets_that_it_is_given(tmp_path):
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as pipe:
        code = f"import os; os.write({write_end}, os.environ['WORD'].encode()); print('done')"
        child = started(code, tmp_path / "log", environment={"WORD": "given"}, pass_fds=[write_end])
        os.close(write_end)
        assert pipe.read() == "given"
    assert child.wait(20) == 0
