"""The loop around a stage: it never ends by itself, is quiet about lost races, and never pauses beyond its pace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from engine.clock import SystemClock
from engine.errors import Conflict, StoreUnavailable
from engine.events import Events
from engine.service import FAILURE_PAUSE_MS_MAX, Service
from tests.support.wait import until_async

HOUR_MS = 3_600_000


class Stage:
    """A stage that ends each round as it is told, and then well."""

    def __init__(self, errors: list[Exception]) -> None:
        self.rounds = 0
        self._errors: Iterator[Exception] = iter(errors)

    async def run_once(self, now_ms: int) -> bool:
        self.rounds += 1
        error = next(self._errors, None)
        if error:
            raise error
        return False


def run(errors: list[Exception], interval_ms: int) -> tuple[list[str], Service]:
    """Let it run until every error has been raised and a round has gone well; returns what was told."""
    told: list[str] = []
    events = Events()
    events.subscribe(lambda name, fields: told.append(name))
    stage = Stage(errors)

    async def main() -> Service:
        service = Service("stage", stage.run_once, interval_ms, SystemClock(), events)
        service.start()
        await until_async(lambda: stage.rounds > len(errors))
        await service.stop()
        return service

    return told, asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (StoreUnavailable("away"), "stage.unavailable"),
        (Conflict("lost a race"), "stage.outrun"),
        (ValueError("ours"), "stage.failed"),
    ],
)
def test_p10_a_failed_round_is_told_by_who_must_act_and_tried_again(error: Exception, event: str) -> None:
    told, _ = run([error, error], HOUR_MS)
    assert told == [event, event]


@pytest.mark.parametrize(("interval_ms", "pause_ms_max"), [(400, 400), (HOUR_MS, FAILURE_PAUSE_MS_MAX), (1, 100)])
def test_p10_a_pause_after_failures_grows_to_the_stages_own_pace_at_most(interval_ms: int, pause_ms_max: int) -> None:
    service: Any = run([], interval_ms)[1]
    assert service._pause_ms_max == pause_ms_max
