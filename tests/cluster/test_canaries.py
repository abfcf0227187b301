"""Secrets get out nowhere: a whole service runs with canaries for secrets, against an endpoint that echoes everything.

Then everything it has said is searched: logs, metrics, history, notices, answers, the database, command lines.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import pytest

from engine.config import Dsn
from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from tests.support.echo import Echo, echoing
from tests.support.mysql import query
from tests.support.wait import until

ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("SECONDZERO_")}
DATABASE = "canaries"
END_S = 60.0
STOP_S = 40

# What a tenant has said is a secret, or is one by the name of its header.
HEADERS = {
    "Authorization": "Bearer c4nary-token-5f1c/9Zq+x",
    "Cookie": "theme=dark; session=c4nary-cookie-77ab",
    "X-Own": {"value": 'c4nary"own" &value<18e0>', "secret": True},
}
HEADER_CANARIES = ["c4nary-token-5f1c", "c4nary-cookie-77ab", 'c4nary"own"', "value<18e0>"]
# Paths and queries are no secrets to the tenant; to operators' logs and metrics they are.
PATH_CANARIES = ["p4th-canary", "qu3ry-canary"]
PASSWORD = "c4nary-password-d81e"


def base64_of(text: str) -> list[str]:
    """The middle of a text in base64, wherever it begins: enough to know it by."""
    return [base64.b64encode(b"x" * offset + text.encode()).decode()[4:-4] for offset in range(3)]


class Service:
    """`secondzero api` and `engine` on one database, the password of its account on their command lines."""

    def __init__(self, folder: Path, dsn: Dsn) -> None:
        self._folder = folder
        self.dsn = dsn
        self.port, self.metrics_port = free_port(), free_port()
        self.created = orjson.loads(self.types("tenant", "create", "acme", "--json"))
        self.processes = {
            "api": self._start("api", "--port", str(self.port)),
            "engine": self._start("engine", "--executors", "1", "--metrics-port", str(self.metrics_port)),
        }

    def types(self, *words: str) -> str:
        """What a command says on both outputs."""
        variables = ENVIRON | {"SECONDZERO_SHARD": self.dsn.text()}
        command = [sys.executable, "-m", "engine", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)
        return ended.stdout + ended.stderr

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        shard = ("--shard", self.dsn.text(), "--log-level", "debug", "--allow-network", "127.0.0.0/8")
        with self.log_of(words[0]).open("wb") as log:
            return spawn([sys.executable, "-m", "engine", *words, *shard], log, signal.SIGKILL, environment=ENVIRON)

    def log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def call(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {
            "Authorization": f"Bearer {key or self.created['api_key']}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{method}-{len(path)}-{path[-9:]}",
        }
        try:
            connection.request(method, path, None if body is None else orjson.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            urlopen(f"http://127.0.0.1:{self.metrics_port}/readyz", timeout=5).close()
        except OSError:
            return False
        return self.call("GET", "/readyz")[0] == 200

    def stop(self) -> None:
        for process in self.processes.values():
            end_child(process, STOP_S)


@pytest.fixture
def service(tmp_path: Path, mysql_server: Any) -> Iterator[Service]:
    root = mysql_server.dsn("")

    def run(statement: str) -> None:
        asyncio.run(query(root, statement))

    run(f"CREATE USER canary IDENTIFIED BY '{PASSWORD}'")
    run(f"GRANT ALL ON {DATABASE}.* TO canary")
    dsn = replace(root, user="canary", password=PASSWORD, database=DATABASE)
    variables = ENVIRON | {"SECONDZERO_SHARD": dsn.text()}
    subprocess.run(
        [sys.executable, "-m", "engine", "migrate", "--partitions", "8"], check=True, env=variables, capture_output=True
    )
    service = Service(tmp_path, dsn)
    try:
        until(service.is_ready, END_S)
        yield service
    finally:
        service.stop()
        run(f"DROP DATABASE {DATABASE}")
        run("DROP USER canary")


def job(url: str, port: int) -> dict[str, Any]:
    return {
        "schedule": {"cron": "0 0 1 1 *"},
        "target": {"http": {"url": url, "headers": HEADERS, "body": "{}"}},
        "retry": {"max_attempts": 1},
        "on_failure": {"url": f"http://127.0.0.1:{port}/notice/p4th-canary?q=qu3ry-canary"},
    }


def live_through(service: Service, echo: Echo) -> dict[str, bytes]:
    """Jobs that fail in every way, each run by hand; returns all that the API has answered."""
    at = f"http://127.0.0.1:{echo.port}/p4th-canary"
    urls = {f"echo-{which}": f"{at}?qu3ry-canary&which={which}" for which in range(6)}
    urls |= {f"cut-{cut}": f"{at}?qu3ry-canary&cut={cut}&which={cut % 5}" for cut in range(900, 1_020, 12)}
    urls |= {
        "refused": f"http://127.0.0.1:{free_port()}/p4th-canary?qu3ry-canary",
        "no-tls": f"https://127.0.0.1:{echo.port}/p4th-canary?qu3ry-canary",
        "no-name": "https://nowhere.invalid/p4th-canary?qu3ry-canary",
        "forbidden": f"http://127.0.0.1:{service.metrics_port}/p4th-canary?qu3ry-canary",
    }
    answers = {}
    for name, url in urls.items():
        status, answers[f"PUT {name}"] = service.call("PUT", f"/v1/jobs/{name}", job(url, echo.port))
        assert status == 201, answers
        assert service.call("POST", f"/v1/jobs/{name}:run")[0] in (200, 202)
    until(lambda: all(state_of(service, name) == "failed" for name in urls), END_S)
    until(lambda: len(echo.notices) == len(urls), END_S)
    for name in urls:
        run = orjson.loads(service.call("GET", f"/v1/jobs/{name}/runs")[1])["runs"][0]
        answers[f"runs {name}"] = service.call("GET", f"/v1/jobs/{name}/runs")[1]
        answers[f"run {name}"] = service.call("GET", f"/v1/jobs/{name}/runs/{run['scheduled_at']}")[1]
    for path in ("/v1/dead-letters", "/v1/jobs", "/v1/usage", "/v1/forecast", "/openapi.json", "/docs"):
        answers[path] = service.call("GET", path)[1]
    return answers | faults(service, echo)


def faults(service: Service, echo: Echo) -> dict[str, bytes]:
    """Calls that are wrong, with secrets in what is wrong."""
    good = job(f"http://127.0.0.1:{echo.port}/", echo.port)
    broken = {
        "newline": {"Authorization": "c4nary-token-5f1c\n"},
        "long": {"Authorization": "c4nary-token-5f1c" * 600},
        "type": {"Authorization": {"value": ["c4nary-token-5f1c"], "secret": True}},
        "both": {"Authorization": {"value": "c4nary-token-5f1c\0", "secret": True, "fingerprint": "00000000"}},
    }
    answers = {}
    for name, headers in broken.items():
        wrong = good | {"target": {"http": good["target"]["http"] | {"headers": headers}}}
        status, answers[f"fault {name}"] = service.call("PUT", f"/v1/jobs/{name}", wrong)
        assert status == 422
    status, answers["wrong key"] = service.call("GET", "/v1/jobs", key="sz_c4nary-token-5f1c")
    assert status == 401
    return answers


def state_of(service: Service, name: str) -> str | None:
    runs = orjson.loads(service.call("GET", f"/v1/jobs/{name}/runs")[1])["runs"]
    return runs[0]["state"] if runs else None


def command_lines() -> bytes:
    """Those of every process of this machine, with their titles."""
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "comm"):
            try:
                texts.append((process / file).read_bytes())
            except OSError:
                continue  # it has ended
    return b"\n".join(texts)


def everything_stored(dsn: Dsn) -> bytes:
    def ask(text: str) -> list[Any]:
        return asyncio.run(query(dsn, text))

    return "\n".join(repr(ask(f"SELECT * FROM {table}")) for (table,) in ask("SHOW TABLES")).encode()


def hits(where: dict[str, bytes], canaries: list[str]) -> list[tuple[str, str]]:
    return [(place, canary) for place, text in where.items() for canary in canaries if canary.encode() in text]


def test_p9_no_canary_gets_out_of_a_service_whose_endpoint_echoes_everything(service: Service) -> None:
    with echoing() as echo:
        answers = live_through(service, echo)
    assert all(text in head for head in echo.calls for text in HEADER_CANARIES), "they were sent"
    lines = command_lines()
    metrics = urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=20).read()
    said = {" ".join(words): service.types(*words).encode() for words in COMMANDS}
    service.stop()
    logs = {name: service.log_of(name).read_bytes() for name in service.processes}
    stored = everything_stored(service.dsn)
    signing = service.created["signing_secret"].removeprefix("whsec_")
    secrets = [*HEADER_CANARIES, PASSWORD, signing, service.created["api_key"]]
    secrets += [core for text in (*HEADER_CANARIES, PASSWORD) for core in base64_of(text)]
    operators = {"command lines": lines, "metrics": metrics, **logs, **said}
    tenants = {**answers, "notices": b"\n".join(echo.notices)}
    assert hits(operators, [*secrets, *PATH_CANARIES]) == []
    assert hits({**tenants, "database": stored}, secrets) == []
    # What was searched was there.
    (forbidden,) = orjson.loads(answers["runs forbidden"])["runs"]
    assert (forbidden["outcome"], forbidden["attempts"]) == ("target_refused", 1)
    assert all(b"http://127.0.0.1" in answers[f"PUT {name}"] for name in ("echo-0", "cut-900"))
    assert b"[secret]" in answers["run echo-0"] or b"W3NlY3JldF" in answers["run echo-0"]
    assert all(b'"event"' in text for text in logs.values())
    assert b"mysql://canary:****" in lines, "the address is there, its password is not"


COMMANDS = [("status",), ("status", "--json"), ("check",), ("check", "--json"), ("tenant", "list"), ("keys", "list")]
