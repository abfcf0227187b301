"""Faults in a real fleet: whatever breaks, every scheduled time has one outcome, and no operator was needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from engine.local.mysqld import MysqlServer
from tests.support.fleet import Fleet, fleet_of, now_ms, second, sleep_until, two_servers

NUMBERS = count(1)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[MysqlServer]]:
    with two_servers() as started:
        yield started


@pytest.fixture
def fleet(servers: list[MysqlServer]) -> Iterator[Fleet]:
    with fleet_of(servers, f"faults_{next(NUMBERS)}") as fleet:
        yield fleet


def test_p10_a_killed_executor_delays_its_runs_by_less_than_two_seconds(fleet: Fleet) -> None:
    engine = fleet.engine()
    at_ms = second(3)
    fleet.jobs(400, at_ms, over_s=4, path="/slow?ms=100")
    sleep_until(at_ms + 1_030)
    fault_at_ms = now_ms()
    engine.kill("executor-0")
    verdict = fleet.check("kill -9 of an executor", fault_at_ms)
    assert verdict.recovery_ms < 2_000
