"""A worker and the real service: runs are carried out, fail, are cancelled, pass their deadline and are given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secondzero_client import Client, Conflict, Worker
from tests.support import functions
from tests.support.api import Tenant
from tests.support.wait import until

# A cancel reaches a worker with its next heartbeat, within 5 s; at most 10 are promised.
TOLD_S = 10.0
RUNS = 30


@contextmanager
def working(client: Client, tenant: Tenant, **settings: Any) -> Iterator[Worker]:
    worker = Worker(client.url, tenant.key, **{"grace_s": 0.1} | settings)
    worker.functions = functions.worker.functions
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


class Started:
    """Runs of functions, started by hand."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runs: dict[str, dict[str, Any]] = {}

    def run(self, function: str, payload: Any = None, **job: Any) -> str:
        """The name of its job."""
        name = f"{function}-{len(self._runs)}"
        target = {"function": {"name": function, "payload": payload}}
        self._client.put_job(name, {"schedule": {"cron": "0 0 1 1 *"}, "target": target, **job})
        self._runs[name] = self._client.run_job(name)
        return name

    def now(self, name: str) -> dict[str, Any]:
        return self._client.get_run(name, self._runs[name]["scheduled_at"])

    def ended(self, name: str, *states: str) -> dict[str, Any]:
        return until(lambda: run if (run := self.now(name))["state"] in states else None)

    def cancel(self, name: str) -> None:
        self._client.cancel_run(name, self._runs[name]["scheduled_at"])


@pytest.fixture
def started(client: Client) -> Started:
    return Started(client)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_functions_of_every_kind_are_carried_out(client: Client, tenant: Tenant, started: Started) -> None:
    with working(client, tenant):
        names = [started.run(function, {"day": 1}) for function in ("echo", "echo.process", "nothing", "about")]
        thread, process, task, about = [started.ended(name, "succeeded") for name in names]
    assert (thread["result"], thread["outcome"]) == ({"day": 1}, "function_done")
    assert process["result"]["payload"] == {"day": 1}
    assert task.get("result") is None
    assert (about["result"]["attempt"], about["result"]["trigger"]) == (1, "manual")
    assert about["result"]["left_s"] <= 30 + 3


def test_p2_failures_are_tried_again_or_dead_letters_as_they_say(
    client: Client, tenant: Tenant, started: Started
) -> None:
    with working(client, tenant):
        later = started.run("fail.process", {"how": "retry", "after": "1h"})
        never = started.run("fail", {"how": "fatal"})
        odd = started.run("odd", "long")
        assert [started.ended(name, "failed")["outcome"] for name in (never, odd)] == ["function_failed"] * 2
        until(lambda: started.now(later)["attempt_list"])
    assert started.now(later)["state"] == "pending"
    assert "later" in started.now(later)["attempt_list"][0]["detail"] + started.now(later)["attempt_list"][0]["answer"]
    assert {letter["job"] for letter in client.list_dead_letters()} == {never, odd}


def test_p3_cancel_and_deadline_reach_the_functions(
    client: Client, tenant: Tenant, started: Started, tmp_path: Path
) -> None:
    kinds = ["until_cancelled", "until_cancelled.process", "until_cancelled.async"]
    files = [tmp_path / kind for kind in [*kinds, "deadline"]]
    with working(client, tenant):
        names = [started.run(kind, {"file": str(file)}) for kind, file in zip(kinds, files, strict=False)]
        started.run(kinds[0], {"file": str(files[-1])}, timeout="1s", retry={"max_attempts": 1})
        until(lambda: {text_of(file) for file in files[:-1]} == {"began"})
        for name in names:
            started.cancel(name)
        until(lambda: {text_of(file) for file in files} == {"cancelled"}, TOLD_S)
        assert [started.ended(name, "cancelled")["state"] for name in names] == ["cancelled"] * 3


def test_p10_what_a_stopping_worker_gives_back_another_one_finishes(
    client: Client, tenant: Tenant, started: Started, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    with working(client, tenant):
        name = started.run("until_file", {"file": str(file)})
        until(lambda: started.now(name)["state"] == "running")
    file.touch()
    with working(client, tenant):
        run = started.ended(name, "succeeded")
    assert (run["result"], run["attempts"]) == ("there", 2)


def test_p3_the_work_calls_refuse_a_token_that_is_over(client: Client, started: Started) -> None:
    name = started.run("by_hand", [1])
    (work,) = client.claim_work(["by_hand"], max=5, wait="5s")["runs"]
    assert (work["payload"], work["attempt"]) == ([1], 1)
    assert client.heartbeat_work(work["token"], progress=40, note="half")["stop"] is False
    assert (started.now(name)["progress"], started.now(name)["note"]) == (40, "half")
    client.release_work(work["token"], started=False)
    with pytest.raises(Conflict):
        client.complete_work(work["token"], "late")
    (again,) = client.claim_work(["by_hand"], wait="5s")["runs"]
    assert client.complete_work(again["token"], {"pages": 3})["state"] == "succeeded"
    assert started.now(name)["result"] == {"pages": 3}


def test_many_functions_at_once(client: Client, tenant: Tenant) -> None:
    """More runs than slots: every one is carried out once."""
    done: list[int] = []
    lock = threading.Lock()

    def note(payload: int) -> int:
        with lock:
            done.append(payload)
        return payload

    job = {"schedule": {"cron": "0 0 1 1 *"}}
    puts = [
        {"name": f"n{n}", "job": job | {"target": {"function": {"name": "note", "payload": n}}}} for n in range(RUNS)
    ]
    client.batch_jobs(puts=puts)
    worker = Worker(client.url, tenant.key, concurrency=8)
    worker.function("note")(note)
    thread = threading.Thread(target=worker.run)
    thread.start()
    runs = [client.run_job(put["name"]) for put in puts]
    until(lambda: len(done) == len(runs))
    worker.stop()
    thread.join()
    assert sorted(done) == list(range(RUNS))
    assert {client.get_run(run["job"], run["scheduled_at"])["state"] for run in runs} == {"succeeded"}
