"""One request that is made to keep the process busy: it costs its own caller, and moves no other's answer by much."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from api.batch import BATCH
from api.definitions import JOB
from api.fields import UNKNOWN_COMPARED_MAX, UNKNOWN_NAMED_MAX, Reading
from api.job_reading import JobReading
from api.records import Record
from engine.clock import SystemClock, perf_ns
from engine.model import RunState
from tests.support.api import CRON_JOB, RunTable, Tenant

# What a reading may take on a machine that is busy with other tests; without its bounds each took minutes.
READ_MS_MAX = 1_000
MADE_UP = {f"schedul{number}": 1 for number in range(100_000)}


def took_ms(record: Record, document: Any, reading: Reading) -> float:
    begun_ns = perf_ns()
    assert record.read(document, "", reading) is None
    return (perf_ns() - begun_ns) / 1e6


@pytest.mark.parametrize(
    ("record", "document"),
    [
        (JOB, MADE_UP),
        (JOB, CRON_JOB | {"target": MADE_UP}),
        (JOB, CRON_JOB | {"schedule": MADE_UP}),
        (JOB, CRON_JOB | {"retry": MADE_UP}),
        (JOB, CRON_JOB | {"labels": MADE_UP}),
        (JOB, CRON_JOB | {"target": {"http": {"url": "https://example.com/", "headers": MADE_UP}}}),
        (JOB, CRON_JOB | {"target": {"http": {"url": "https://example.com/" + "é" * 2_000_000}}}),
        (JOB, CRON_JOB | {"timeout": "1" * 2_000_000}),
        (JOB, CRON_JOB | {"schedule": {"cron": "1," * 1_000_000}}),
        (JOB, CRON_JOB | {"priority": "hig" * 1_000_000}),
        (BATCH, MADE_UP),
        (BATCH, {"puts": [MADE_UP] * 10}),
        (BATCH, {"puts": [1] * 1_000_000}),
        (BATCH, {"deletes": ["!" * 1_000] * 1_000}),
    ],
    ids=lambda value: "",
)
def test_p6_no_body_takes_long_to_refuse(record: Record, document: Any) -> None:
    reading = JobReading(0) if record is JOB else Reading(0)
    assert took_ms(record, document, reading) < READ_MS_MAX
    assert reading.faults


def test_unknown_fields_are_named_as_many_as_anybody_reads() -> None:
    reading = JobReading(0)
    JOB.read(CRON_JOB | {f"timeou{number}": 1 for number in range(500)}, "", reading)
    named = [fault for fault in reading.faults if "is no field here" in fault.detail]
    assert len(named) == UNKNOWN_NAMED_MAX
    assert sum(fault.example == "timeout" for fault in named) == UNKNOWN_COMPARED_MAX
    assert reading.faults[-1].detail.startswith("there are more")


def test_p6_others_are_answered_while_a_huge_body_is_read(tenant: Tenant) -> None:
    """8 MB of the smallest objects there are, which took a second in one piece."""
    body = b'{"puts": [' + b'{"a":1},' * 900_000 + b"0]}"
    replies = []
    thread = threading.Thread(target=lambda: replies.append(tenant.call("POST", "/v1/jobs:batch", body)))
    other = tenant.server.tenant()
    other.get("/v1/usage")
    longest_s = 0.0
    thread.start()
    while thread.is_alive():
        begun = time.perf_counter()
        assert other.get("/v1/usage").status == 200
        longest_s = max(longest_s, time.perf_counter() - begun)
    assert replies[0].status == 422
    assert longest_s < 3


def test_p6_a_forecast_of_jobs_that_are_due_every_second_lets_others_in_between(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_second = CRON_JOB | {"schedule": {"cron": "* * * * * *"}}
    puts = [{"name": f"job-{number}", "job": every_second} for number in range(60)]
    assert tenant.call("POST", "/v1/jobs:batch", {"puts": puts}).status == 200
    told = tenant.get("/v1/forecast").json
    assert (told["complete"], {each["runs"] for each in told["seconds"]}) == (True, {60})
    turns = []
    monkeypatch.setattr("api.forecast.TIMES_PER_TURN", 3_600)
    monkeypatch.setattr("api.forecast.asyncio.sleep", _noted(turns, asyncio.sleep))
    assert tenant.get("/v1/forecast").json["runs"] >= 60 * 3_600
    assert turns.count(0) >= 59
    monkeypatch.setattr("api.forecast.TIMES_MAX", 10_000)
    monkeypatch.setattr("api.forecast.PAGE", 10)
    less = tenant.get("/v1/forecast").json
    assert less["complete"] is False
    assert less["runs"] < 60 * 3_600


def test_p6_a_large_page_lets_others_in_between(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    puts = [{"name": f"job-{number}", "job": CRON_JOB} for number in range(20)]
    assert tenant.call("POST", "/v1/jobs:batch", {"puts": puts}).status == 200
    runs = RunTable(tenant, "job-0")
    last_ms = SystemClock().now_ms() // 1000 * 1000
    for number in range(20):
        runs.add(last_ms - number * 1000, RunState.SUCCEEDED)
    for module, path, key in (("job_list", "/v1/jobs", "jobs"), ("runs", "/v1/jobs/job-0/runs", "runs")):
        turns: list[float] = []
        monkeypatch.setattr(f"api.{module}.SHOWN_PER_TURN", 5)
        monkeypatch.setattr("api.pieces.asyncio", SimpleNamespace(sleep=_noted(turns, asyncio.sleep)))
        assert len(tenant.get(path).json[key]) == 20
        assert turns == [0] * 4


def _noted(turns: list[float], sleep: Any) -> Any:
    async def noted(seconds: float) -> None:
        turns.append(seconds)
        await sleep(seconds)

    return noted
