"""The work protocol as the worker speaks it: claims with the service's clock, durations, and bounds of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from secondzero_client import calls
from secondzero_client.client import Client
from secondzero_client.requests import Answer, Request, read_json
from secondzero_client.runs import read_time

CLAIM_WAIT_S = 20
CLAIM_TIMEOUT_S = CLAIM_WAIT_S + 15.0
# The Date header has whole seconds, and the deadline is the service's to call: this worker does it a little later,
# where it hears nothing from the service.
DEADLINE_SLACK_S = 2.0
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def claim(client: Client, functions: Sequence[str], runs_max: int) -> list[dict[str, Any]]:
    """Claimed runs, after up to 20 s. Each has ``ends_s``, its deadline by this machine's monotonic clock (None where
    the service does not tell its time), and ``interval_s`` of its heartbeats."""
    asked = calls.claim_work(functions, max=runs_max, wait=f"{CLAIM_WAIT_S}s")
    request: Request[Any] = replace(asked, timeout_s=CLAIM_TIMEOUT_S, total_s=0, reads=_with_ends)
    claimed: list[dict[str, Any]] = client.send(request)
    return claimed


def heartbeat(client: Client, token: str, percent: int | None, note: str | None, timeout_s: float) -> Any:
    """Sent once: the next one comes soon enough."""
    request = calls.heartbeat_work(token, progress=percent, note=note)
    return client.send(replace(request, timeout_s=timeout_s, total_s=0))


def release(client: Client, token: str, *, started: bool, total_s: float) -> None:
    client.send(replace(calls.release_work(token, started=started), timeout_s=total_s, total_s=total_s))


def duration(after: float | str | None) -> str | None:
    """As the API writes durations; a number is seconds."""
    return after if after is None or isinstance(after, str) else f"{max(0, round(after * 1_000))}ms"


def seconds(text: str) -> float:
    """Of a duration as the API writes it. ValueError if it is none."""
    read = _DURATION.fullmatch(text)
    if read is None:
        raise ValueError(f"{text!r} is not a duration")
    return int(read[1]) * _UNIT_S[read[2]]


def _with_ends(answer: Answer) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = read_json(answer)["runs"]
    now_s, told = time.monotonic(), answer.headers.get("date")
    for run in runs:
        run["interval_s"] = seconds(run["heartbeat_interval"])
        left = None if told is None else read_time(run["deadline"]) - parsedate_to_datetime(told)
        run["ends_s"] = None if left is None else now_s + left.total_seconds() + DEADLINE_SLACK_S
    return runs
