"""A worker: functions in threads and processes, heartbeats beside them, and what happens when nobody waits any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secondzero_client import Fatal, NotAllowed, Worker, current_run
from tests.support import functions
from tests.support.wait import until
from tests.support.work_hub import WorkHub

ROOT = Path(__file__).parent.parent.parent
KINDS = ["", ".process"]


@pytest.fixture
def hub() -> Iterator[WorkHub]:
    with WorkHub() as hub:
        yield hub


@pytest.fixture
def working(hub: WorkHub) -> Iterator[WorkHub]:
    """A hub with the worker of the test functions."""
    with running(hub, functions.worker.functions):
        yield hub


@contextmanager
def running(hub: WorkHub, registered: dict[str, Any], **settings: Any) -> Iterator[Worker]:
    """A worker in a thread of the test's."""
    worker = Worker(hub.url, "sz_x", **{"concurrency": 4, "grace_s": 0.2} | settings)
    worker.functions = registered
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def ended(hub: WorkHub, token: str) -> tuple[str, dict[str, Any]]:
    (end,) = until(lambda: hub.ends(token))
    return end


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_function_gets_its_payload_and_its_result_is_reported(working: WorkHub) -> None:
    assert ended(working, working.put("echo", {"n": [1, "ü"]})) == ("complete", {"result": {"n": [1, "ü"]}})
    assert ended(working, working.put("nothing")) == ("complete", {"result": None})


def test_each_run_of_a_process_function_has_a_process_of_its_own(working: WorkHub) -> None:
    results = [ended(working, working.put("echo.process", number))[1]["result"] for number in (1, 2)]
    assert [result["payload"] for result in results] == [1, 2]
    assert len({result["pid"] for result in results} | {os.getpid()}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_knows_its_run(working: WorkHub, kind: str) -> None:
    token = working.put(f"about{kind}", timeout_s=60)
    about = ended(working, token)[1]["result"]
    assert 50 < about.pop("left_s") < 63
    assert 59 < about.pop("deadline_after_scheduled_s") < 62
    assert about.pop("scheduled_at").endswith("+00:00")
    assert about == {"job": "job", "attempt": 3, "key": "run_1", "trigger": "schedule"}


def test_there_is_no_current_run_outside_of_one() -> None:
    with pytest.raises(RuntimeError, match="a worker runs"):
        current_run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"how": "retry", "after": 90}, {"retryable": True, "retry_after": "90000ms"}),
        ({"how": "retry", "after": "5m"}, {"retryable": True, "retry_after": "5m"}),
        ({"how": "fatal"}, {"retryable": False}),
        ({"how": "value"}, {"retryable": True}),
        ({"how": "exit"}, {"retryable": True}),
    ],
)
def test_a_failure_is_reported_with_what_a_further_attempt_may_do(
    working: WorkHub, kind: str, payload: dict[str, Any], said: dict[str, Any]
) -> None:
    verb, body = ended(working, working.put(f"fail{kind}", payload))
    error = body.pop("error")
    assert (verb, body) == ("fail", said)
    assert {"retry": "later", "fatal": "never", "value": "ValueError: odd", "exit": "3"}[payload["how"]] in error
    assert "functions.py" in error


def test_a_process_that_dies_is_a_failure(working: WorkHub) -> None:
    verb, body = ended(working, working.put("die"))
    assert (verb, body["retryable"]) == ("fail", True)
    assert "exit code -9" in body["error"]


@pytest.mark.parametrize("odd", ["bytes", "nan", "long"])
def test_a_result_that_cannot_be_kept_is_no_matter_of_tries(working: WorkHub, odd: str) -> None:
    verb, body = ended(working, working.put("odd", odd))
    assert (verb, body["retryable"]) == ("fail", False)
    assert ("65536" if odd == "long" else "JSON") in body["error"]


def test_a_result_that_the_service_refuses_is_told_as_the_failure(working: WorkHub) -> None:
    working.refuses["complete"] = 413
    token = working.put("echo", 1)
    until(lambda: len(working.ends(token)) == 2)
    verb, body = working.ends(token)[1]
    assert (verb, body["retryable"]) == ("fail", False)
    assert "at most 64 KB" in body["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_heartbeats_go_on_while_the_function_blocks_and_carry_its_progress(
    working: WorkHub, kind: str, tmp_path: Path
) -> None:
    token = working.put(f"until_cancelled{kind}", {"file": str(tmp_path / "file")})
    until(lambda: {"progress": 1, "note": "began"} in working.beats(token))
    before = len(working.beats(token))
    until(lambda: len(working.beats(token)) > before + 3)
    assert working.ends(token) == []


@pytest.mark.parametrize("kind", ["", ".process", ".async"])
@pytest.mark.parametrize("why", ["cancelled", "deadline", "lost"])
def test_p3_who_is_not_waited_for_is_told_and_its_result_thrown_away(
    working: WorkHub, kind: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    token = working.put(f"until_cancelled{kind}", {"file": str(file)})
    until(lambda: text_of(file) == "began")
    if why == "lost":
        working.stale.add(token)
    else:
        working.stops[token] = why
    until(lambda: text_of(file) == "cancelled")
    obeyed = [("release", {"started": True})] if why == "cancelled" else []
    until(lambda: working.ends(token) == obeyed)
    assert ended(working, working.put("echo", "after it")) == ("complete", {"result": "after it"})
    assert working.ends(token) == obeyed


def test_a_process_that_does_not_listen_is_killed_with_what_it_started(working: WorkHub, tmp_path: Path) -> None:
    file = tmp_path / "file"
    token = working.put("deaf", {"file": str(file), "starts": "sleep 60"})
    pids = until(lambda: text_of(file)).split()
    before = len(working.beats(token))
    until(lambda: len(working.beats(token)) > before + 3)
    working.stops[token] = "cancelled"
    until(lambda: not any(alive(int(pid)) for pid in pids))
    assert ended(working, token) == ("release", {"started": True})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_deadline_holds_where_the_service_is_not_heard(working: WorkHub, tmp_path: Path) -> None:
    """By this machine's monotonic clock, a little later than the service's own."""
    file = tmp_path / "file"
    working.put("until_cancelled", {"file": str(file)}, timeout_s=0.1, interval="1h")
    until(lambda: text_of(file) == "cancelled")


def test_no_more_runs_are_claimed_than_there_are_slots(working: WorkHub, tmp_path: Path) -> None:
    go = tmp_path / "go"
    tokens = [working.put("until_file", {"file": str(go)}) for _ in range(10)]
    until(lambda: len(working.ready) == 6)
    assert sum(claim["max"] for claim in working.claims[:1]) == 4
    go.touch()
    for token in tokens:
        assert ended(working, token) == ("complete", {"result": "there"})


def test_an_api_that_is_away_costs_no_result(working: WorkHub) -> None:
    token = working.put("echo", 1)
    ended(working, token)
    working.away = 5
    again = working.put("echo", 2)
    assert ended(working, again) == ("complete", {"result": 2})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_lets_runs_finish_within_the_grace(hub: WorkHub, kind: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with running(hub, functions.worker.functions, grace_s=20) as worker:
        token = hub.put("until_file", {"file": str(go)})
        until(lambda: hub.beats(token))
        worker.stop()
        go.touch()
        assert ended(hub, token) == ("complete", {"result": "there"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_gives_back_what_does_not_finish(hub: WorkHub, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with running(hub, functions.worker.functions):
        token = hub.put(f"until_cancelled{kind}", {"file": str(file)})
        until(lambda: text_of(file) == "began")
    assert hub.ends(token) == [("release", {"started": True})]
    assert text_of(file) == "cancelled"


def test_what_is_claimed_while_it_stops_is_given_back_untried(hub: WorkHub, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with running(hub, functions.worker.functions, grace_s=20) as worker:
        busy = hub.put("until_file", {"file": str(go)})
        until(lambda: hub.beats(busy) and len(hub.claims) == 2)
        worker.stop()
        token = hub.put("echo", 1)
        assert ended(hub, token) == ("release", {"started": False})
        go.touch()


def test_a_worker_that_is_refused_ends_with_the_reason(hub: WorkHub) -> None:
    hub.refuses["claim"] = 403
    worker = Worker(hub.url, "sz_x")
    worker.functions = functions.worker.functions
    with pytest.raises(NotAllowed):
        worker.run()


@contextmanager
def command(hub: WorkHub, worker: str = "tests.support.functions:worker") -> Iterator[subprocess.Popen[bytes]]:
    program = str(Path(sys.executable).parent / "secondzero-worker")
    environment = {**os.environ, "SECONDZERO_URL": hub.url, "SECONDZERO_API_KEY": "sz_x"}
    process = subprocess.Popen(
        [program, worker],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_command_finishes_what_is_under_way_at_sigterm(hub: WorkHub, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with command(hub) as process:
        token = hub.put("until_file", {"file": str(go)})
        in_process = hub.put("echo.process", 1)
        until(lambda: hub.beats(token) and hub.ends(in_process))
        process.send_signal(signal.SIGTERM)
        until(lambda: hub.beats(token))
        assert process.poll() is None
        go.touch()
        assert process.wait(20) == 0
        assert hub.ends(token) == [("complete", {"result": "there"})]


def test_a_worker_with_a_wrong_clock_is_harmless(hub: WorkHub) -> None:
    with command(hub, "tests.support.off_by_a_day:worker"):
        verb, said = ended(hub, hub.put("about", timeout_s=40))
    assert verb == "complete"
    assert 35 < said["result"]["left_s"] < 45, "by the service's time"


def test_the_command_gives_back_at_a_second_signal(hub: WorkHub, tmp_path: Path) -> None:
    with command(hub) as process:
        token = hub.put("until_cancelled.process", {"file": str(tmp_path / "file")})
        until(lambda: text_of(tmp_path / "file") == "began")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert hub.ends(token) == [("release", {"started": True})]


def test_the_processes_of_a_killed_worker_die_with_it(hub: WorkHub, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with command(hub) as process:
        hub.put("deaf", {"file": str(file), "starts": "true"})
        pid, _ = until(lambda: text_of(file)).split()
        process.kill()
        until(lambda: not alive(int(pid)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reports"], "is not module:worker"),
        (["no_such_module:worker"], "there is no module"),
        (["tests.support.functions:nobody"], "has no 'nobody'"),
        (["tests.support.functions:echo"], "is no Worker"),
        (["tests.support.functions:worker"], "SECONDZERO_URL"),
    ],
)
def test_wrong_usage_of_the_command_is_told_in_a_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secondzero_client.command import main

    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SECONDZERO_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_worker_says_what_is_wrong_with_it() -> None:
    worker = Worker("http://127.0.0.1:9", "sz_x", run_in="process")
    with pytest.raises(ValueError, match="no functions"):
        worker.run()

    @worker.function("local")
    def local() -> None:
        """Not to be found by its name."""

    with pytest.raises(ValueError, match="found by its name"):
        worker.run()
    with pytest.raises(ValueError, match="already"):
        worker.function("local")


def test_a_decorated_function_is_still_itself() -> None:
    assert functions.echo(1) == 1
    decorate: Callable[..., Any] = Worker().function("f")
    with pytest.raises(Fatal):
        decorate(functions.fail)({"how": "fatal"})
