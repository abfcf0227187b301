"""A whole fleet as its operators run it: every part under its own MySQL account, as `secondzero grants` makes it."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest

from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from engine.local.receiver import Receiver
from engine.rules.timestamps import format_time
from engine.store.grants import grants
from tests.support.fleet import Engine, second
from tests.support.mysql import query, server_folder
from tests.support.wait import until

ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("SECONDZERO_")}
DATABASES = ("accounts_1", "accounts_2")
STOP_S = 40
END_S = 60.0
BROKEN = ("stage.failed", "stage.unavailable", "api.failed", "child.ended")


def secondzero(*words, dsns=()):
    """What a command answers; it must succeed."""
    command = [sys.executable, "-m", "engine", *words]
    variables = ENVIRON | {"SECONDZERO_SHARD": " ".join(dsn.text() for dsn in dsns)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


class Fleet:
    """Two databases with a fleet in them, and the addresses of each part's account."""

    def __init__(self, server):
        self._root = [server.dsn(database) for database in DATABASES]
        self._passwords = {}
        self._make("migrate")
        secondzero("migrate", "--partitions", "8", dsns=self.of("migrate"))
        self._make("keeper", "engine", "api", "admin")

    def of(self, part):
        return [replace(dsn, user=f"secondzero_{part}", password=self._passwords[part]) for dsn in self._root]

    def _make(self, *parts):
        """Both shards are on one server here, so the first tells the password."""
        for part in parts:
            self.root(f"DROP USER IF EXISTS secondzero_{part}@'%'")
            for dsn in self._root:
                for statement in grants(part, dsn.database, first=dsn is self._root[0]):
                    rows = self.root(statement)
                    if rows:
                        self._passwords[part] = rows[0][2]

    def root(self, statement):
        return asyncio.run(query(replace(self._root[0], database=""), statement))

    def end(self):
        for dsn in self._root:
            self.root(f"DROP DATABASE IF EXISTS {dsn.database}")


@pytest.fixture
def fleet(mysql_server):
    made = Fleet(mysql_server)
    yield made
    made.end()


class Client:
    """Calls of one tenant."""

    def __init__(self, port, key):
        self._port = port
        self._key = key

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else orjson.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, orjson.loads(answer.read() or b"null")
        except ConnectionRefusedError:
            return 0, None
        finally:
            connection.close()

    def state(self, name):
        _, page = self.call("GET", f"/v1/jobs/{name}/runs")
        return page["runs"][0]["state"] if page and page.get("runs") else None


def job(url, **more):
    """A job that is called in two seconds."""
    return {"schedule": {"run_at": format_time(second(2))}, "target": {"http": {"url": url}}, **more}


def test_p9_a_fleet_runs_with_an_account_of_its_own_for_each_part(fleet):
    with server_folder() as folder, Receiver(folder / "receiver.log") as receiver:
        created = orjson.loads(secondzero("tenant", "create", "acme", "--json", dsns=fleet.of("admin")))
        keepers = [word for dsn in fleet.of("keeper") for word in ("--keeper-shard", dsn.text())]
        engine = Engine(folder / "engine.log", fleet.of("engine"), keepers, 0)
        port = free_port()
        shards = [word for dsn in fleet.of("api") for word in ("--shard", dsn.text())]
        words = ["api", "--port", str(port), "--allow-network", "127.0.0.0/8"]
        with (folder / "api.log").open("wb") as log:
            api = spawn([sys.executable, "-m", "engine", *words, *shards], log, signal.SIGKILL, environment=ENVIRON)
        engine.start()
        try:
            client = Client(port, created["api_key"])
            until(lambda: engine.ready() and client.call("GET", "/readyz")[0] == 200, END_S)
            live_through(client, receiver.url)
            assert "lag" in secondzero("status", dsns=fleet.of("admin"))
            secondzero("audit", "--from", format_time(second(-60)), dsns=fleet.of("admin"))
            secondzero("tenant", "set", "acme", "--limit", "jobs=5", dsns=fleet.of("admin"))
            secondzero("tenant", "delete", "acme", "--yes", dsns=fleet.of("admin"))
        finally:
            assert engine.stop() == 0
            assert end_child(api, STOP_S) is not None
        told = [orjson.loads(line) for line in (folder / "api.log").read_bytes().splitlines() if line[:1] == b"{"]
        wrong = [event for event in engine.events() + told if event["event"] in BROKEN and event.get("code") != 0]
        assert wrong == []


def live_through(client, url):
    """What a tenant does in a day: runs that succeed, fail for good, are retried, waited for, paused and deleted."""
    retry = {"max_attempts": 1}
    assert client.call("PUT", "/v1/jobs/good", job(f"{url}/any/good"))[0] == 201
    assert client.call("PUT", "/v1/jobs/bad", job(f"{url}/status/503", retry=retry))[0] == 201
    assert client.call("PUT", "/v1/jobs/again", job(f"{url}/flaky/again?n=1", retry={"backoff": "500ms"}))[0] == 201
    every = {"schedule": {"cron": "* * * * * *"}, "target": {"http": {"url": f"{url}/slow/every?ms=1500"}}}
    assert client.call("PUT", "/v1/jobs/every", {**every, "overlap": "wait", "labels": {"a": "b"}})[0] == 201
    until(lambda: client.state("good") == "succeeded" and client.state("again") == "succeeded", END_S)
    until(lambda: client.state("bad") == "failed", END_S)
    assert client.call("POST", "/v1/dead-letters:retry", {}) == (200, {"count": 1, "more": False})
    assert client.call("POST", "/v1/jobs/good:run")[0] in (200, 202)
    assert client.call("POST", "/v1/jobs/every:pause", {"note": "enough"})[0] == 200
    assert client.call("POST", "/v1/jobs/every:resume")[0] == 200
    assert client.call("GET", "/v1/jobs?label=a:b")[0] == 200
    assert client.call("POST", "/v1/signing-secrets:rotate")[0] in (200, 201)
    assert client.call("DELETE", "/v1/jobs/every")[0] == 200
