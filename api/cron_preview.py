"""The next times of a cron expression, without a job."""

from __future__ import annotations

from typing import Any

from api.fields import Instant, Whole
from api.records import Record, Slot
from api.requests import Call
from api.responses import Answer
from api.schedules import CronText, ZoneName
from engine.model import Cron
from engine.rules.describe import describe
from engine.rules.schedule import preview
from engine.rules.timestamps import format_time

COUNT, COUNT_MAX = 10, 1_000

PREVIEW = Record(
    "CronPreviewRequest",
    {
        "cron": Slot(CronText(), required=True),
        "time_zone": Slot(ZoneName(), default="UTC"),
        "after": Slot(Instant(), "Times later than this one; absent: than now."),
        "n": Slot(Whole(1, COUNT_MAX, COUNT), "How many times.", default=COUNT),
    },
    lambda given, at, reading: given,
)


async def preview_cron(call: Call) -> Answer:
    """POST /v1/cron:preview"""
    given: dict[str, Any] = await call.fields(PREVIEW)
    cron = Cron(given["cron"], given.get("time_zone", "UTC"))
    times = [
        {"time": format_time(each.time_ms), "local": each.local, "clock_change": each.mark}
        for each in preview(cron, given.get("after", call.now_ms), given.get("n", COUNT))
    ]
    return Answer({"description": describe(cron.cron), "times": times})
