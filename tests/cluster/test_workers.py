"""A worker's runs through faults: real workers, API, engine and MySQL, and each run is carried out once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import main
from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from engine.rules.timestamps import format_time
from engine.settings import Settings, keys_of
from engine.store.admin import create_key
from engine.store.shard import Shard
from secondzero_client import Client, RetryPolicy
from tests.support.breakable import BreakableServer
from tests.support.engines import ENVIRON, READY_S
from tests.support.fleet import Fleet, fleet_of, now_ms, second, sleep_until, two_servers
from tests.support.wait import until

RUNS = 12
STOP_S = 40
# By hand with 30: a worker's silence is counted only while the service could have heard it.
AWAY_S = float(os.environ.get("AWAY_S", "3"))
PATIENT = RetryPolicy(total_s=60, first_pause_s=0.05, pause_s_max=0.5)


class Service:
    """The API before a fleet, and a worker of its tenant, each a process that may be killed."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.port = free_port()
        self.key = asyncio.run(_new_key(fleet))
        self.client = Client(f"http://127.0.0.1:{self.port}", self.key, retries=PATIENT)
        self.go = folder / "go"
        self._folder = folder
        self._api = self._worker = None
        self.names = [f"work-{number}" for number in range(RUNS)]

    def start_api(self) -> None:
        shards = [word for dsn in self.fleet.dsns for word in ("--shard", dsn.text())]
        command = [sys.executable, "-m", "engine", "api", "--port", str(self.port), *shards]
        self._api = self._spawn("api", command)
        until(lambda: self.client.get_readyz()["ready"], READY_S)

    def start_worker(self) -> None:
        told = {"SECONDZERO_URL": f"http://127.0.0.1:{self.port}", "SECONDZERO_API_KEY": self.key}
        command = [sys.executable, "-m", "secondzero_client.command", "tests.support.functions:worker"]
        self._worker = self._spawn("worker", [*command, "--concurrency", str(RUNS)], told)

    def kill_api(self) -> None:
        assert self._api is not None
        self._api.kill()
        self._api.wait()

    def end(self) -> None:
        self.go.touch()
        for process in (self._worker, self._api):
            if process is not None:
                end_child(process, STOP_S)

    def hold_runs(self) -> None:
        """Runs of its worker that go on until ``go`` is there; returns once all of them have begun."""
        target = {"function": {"name": "until_file", "payload": {"file": str(self.go)}}}
        at = format_time(second(1))
        for name in self.names:
            self.client.put_job(name, {"schedule": {"run_at": at}, "target": target, "timeout": "10m"})
        until(lambda: self.states() == {"running"}, READY_S)

    def states(self) -> set[str]:
        return {run["state"] for run in self.runs()}

    def runs(self) -> list[dict[str, Any]]:
        return [run for name in self.names for run in self.client.list_runs(name)]

    def check(self, began_ms: int) -> None:
        """Each run has ended well in its first attempt, and nothing is missing or too much."""
        self.go.touch()
        until(lambda: self.states() == {"succeeded"}, READY_S)
        assert [(run["attempts"], run["outcome"]) for run in self.runs()] == [(1, "function_done")] * RUNS
        sleep_until(now_ms() + 1_000)
        shards = [word for dsn in self.fleet.dsns for word in ("--shard", dsn.text())]
        span = ("--from", format_time(began_ms), "--to", format_time(now_ms() // 1_000 * 1_000))
        assert main(["audit", *span, *shards]) == 0

    def _spawn(self, name: str, command: list[str], told: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return spawn(command, log, signal.SIGKILL, environment=ENVIRON | (told or {}))


async def _new_key(fleet: Fleet) -> str:
    first = Shard(fleet.dsns[0], 0, keys=keys_of(Settings()))
    try:
        return (await create_key(first, fleet.tenant_id, "worker", "full", None)).api_key
    finally:
        await first.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[BreakableServer]]:
    with two_servers() as started:
        yield started


@pytest.fixture
def service(servers: list[BreakableServer], tmp_path: Path) -> Iterator[Service]:
    with fleet_of(servers, "workers") as fleet:
        service = Service(fleet, tmp_path)
        try:
            service.start_api()
            service.start_worker()
            yield service
        finally:
            service.end()


def test_p3_a_killed_api_costs_no_worker_its_runs(service: Service) -> None:
    began_ms = now_ms()
    service.fleet.engine()
    service.hold_runs()
    service.kill_api()
    service.go.touch()  # what ends while nobody listens is told when somebody does
    service.start_api()
    service.check(began_ms)


def test_p3_mysql_that_is_away_costs_no_worker_its_runs(service: Service) -> None:
    began_ms = now_ms()
    service.fleet.engine()
    service.hold_runs()
    for server in service.fleet.servers:
        os.kill(server.pid, signal.SIGSTOP)
    sleep_until(now_ms() + round(AWAY_S * 1_000))
    for server in service.fleet.servers:
        os.kill(server.pid, signal.SIGCONT)
    service.check(began_ms)


def test_p3_a_killed_supervisor_costs_no_worker_its_runs(service: Service) -> None:
    began_ms = now_ms()
    engine = service.fleet.engine()
    service.hold_runs()
    engine.kill_all()
    service.fleet.engine()
    service.check(began_ms)
