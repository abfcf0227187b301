"""The receivers of the package's README, as they stand there, under the engine's own signed bytes over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from tests.client.test_receiver import NEW, OLD, OTHER
from tests.support.signed import Answered, request_bytes, send
from tests.support.wait import until

README = (Path(__file__).parent.parent.parent / "client" / "README.md").read_text()
BLOCKS = {
    block.partition("\n")[0].removeprefix("# ").partition(":")[0]: block
    for block in re.findall(r"```python\n(# \w+\.py.*?)```", README.partition("## A receiver")[2], re.DOTALL)
}
# The user's own code: it notes what it does, waits where it is told, and breaks where it is told.
REPORTS = """
import os, time

def build(order):
    with open("built", "a") as built:
        built.write(order["run"] + "\\n")
    while order.get("until") and not os.path.exists(order["until"]):
        time.sleep(0.01)
    if order.get("breaks_unless") and not os.path.exists(order["breaks_unless"]):
        raise RuntimeError("broken")
    return {"built": order["run"]}
"""
# What a Django project has anyway.
SETTINGS = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
WSGI_APPLICATION = "wsgi.application"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
"""
URLS = """
import views
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("hooks/report", views.report)]
"""
COMMANDS = {
    "flask": ("-m", "flask", "--app", "flask_receiver", "run", "--port"),
    "fastapi": ("-m", "uvicorn", "fastapi_receiver:app", "--port"),
    "django": ("-m", "django", "runserver", "--noreload", "--settings", "settings"),
}


class Served(NamedTuple):
    """One framework's server in a folder of its own."""

    folder: Path
    port: int

    def call(self, run: str, attempt: int, *, secrets: list[str] | None = None, at_s: int | None = None, **order: str):
        body = json.dumps({"run": run, **order}).encode()
        url = f"http://127.0.0.1:{self.port}/hooks/report"
        return send(self.port, request_bytes(url, secrets or [NEW], f"run_{run}", attempt, body, sent_at_s=at_s))

    def built(self, run: str) -> int:
        return (self.folder / "built").read_text().split().count(run) if (self.folder / "built").exists() else 0


@pytest.fixture(scope="module", params=COMMANDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    files = BLOCKS | {"reports.py": REPORTS, "settings.py": SETTINGS, "urls.py": URLS}
    for name, text in files.items():
        (folder / name).write_text(text)
    port = free_port()
    command = [sys.executable, *COMMANDS[request.param], str(port)]
    environment = {**os.environ, "SIGNING_SECRETS": f"{NEW} {OLD}", "PYTHONPATH": str(folder)}
    log = folder / "log"
    with log.open("wb") as output:
        here = os.getcwd()
        os.chdir(folder)
        process = spawn(command, output, signal.SIGKILL, environment=environment)
        os.chdir(here)
    server = Served(folder, port)
    try:
        until(lambda: _answers(server) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        end_child(process, 5)


def _answers(server: Served) -> bool:
    try:
        send(server.port, b"GET /hooks/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    except OSError:
        return False
    return True


def test_there_is_a_receiver_for_each_framework() -> None:
    assert list(BLOCKS) == ["flask_receiver.py", "fastapi_receiver.py", "wsgi.py", "views.py"]


def test_p3_a_run_is_carried_out_once_and_answered_as_often_as_it_comes(served: Served) -> None:
    answers = [served.call("daily", attempt) for attempt in (1, 1, 2, 3)]
    assert [(each.status, json.loads(each.body)) for each in answers] == [(200, {"built": "daily"})] * 4
    assert served.built("daily") == 1
    assert [each.headers.get("idempotency-replayed") for each in answers] == [None, "true", "true", "true"]


def test_only_what_is_signed_now_by_a_valid_secret_gets_in(served: Served) -> None:
    assert served.call("signed", 1, secrets=[OTHER]).status == 401
    assert served.call("signed", 1, at_s=1_700_000_000).status == 401
    assert send(served.port, b"POST /hooks/report HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").status == 401
    assert served.built("signed") == 0
    assert served.call("signed", 1, secrets=[OLD]).status == 200
    assert served.call("signed-too", 1, secrets=[OTHER, NEW]).status == 200


def test_p3_attempts_at_the_same_time_have_one_effect(served: Served) -> None:
    go = served.folder / "go"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(served.call, "slow", 1, until=str(go))
        until(lambda: served.built("slow"))
        others: list[Answered] = list(pool.map(lambda attempt: served.call("slow", attempt), [1, 2, 3, 4]))
        go.touch()
        assert first.result().status == 200
    assert {each.status for each in others} == {409}
    assert 1 <= int(others[-1].headers["retry-after"]) <= 15
    assert json.loads(served.call("slow", 5).body) == {"built": "slow"}
    assert served.built("slow") == 1


def test_p3_a_view_that_breaks_is_called_by_the_next_attempt(served: Served) -> None:
    mended = served.folder / "mended"
    assert served.call("broken", 1, breaks_unless=str(mended)).status == 500
    mended.touch()
    assert served.call("broken", 2, breaks_unless=str(mended)).status == 200
    assert served.call("broken", 1, breaks_unless=str(mended)).status == 200
    assert served.built("broken") == 2


def test_other_paths_pass_by(served: Served) -> None:
    request = b"GET /elsewhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert send(served.port, request).status == 404
