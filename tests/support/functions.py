"""Functions of a worker for tests. A file named in the payload is how they tell and are told."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from secondzero_client import Fatal, Retry, Worker, current_run

worker = Worker(concurrency=4)


@worker.function("echo")
def echo(payload: Any) -> Any:
    return payload


@worker.function("echo.process", run_in="process")
def echo_in_process(payload: Any) -> Any:
    return {"payload": payload, "pid": os.getpid()}


@worker.function("nothing")
async def nothing() -> None:
    await asyncio.sleep(0)


def about() -> dict[str, Any]:
    run = current_run()
    run.progress(40, "nearly half")
    return {
        "job": run.job,
        "attempt": run.attempt,
        "key": run.idempotency_key,
        "scheduled_at": run.scheduled_at.isoformat(),
        "left_s": run.remaining_s(),
        "deadline_after_scheduled_s": (run.deadline - run.scheduled_at).total_seconds(),
        "trigger": run.trigger,
    }


worker.function("about")(about)


@worker.function("about.process", run_in="process")
def about_in_process() -> dict[str, Any]:
    return about()


def fail(payload: dict[str, Any]) -> None:
    if payload["how"] == "exit":
        sys.exit(3)
    raise {"retry": Retry("later", after=payload.get("after")), "fatal": Fatal("never"), "value": ValueError("odd")}[
        payload["how"]
    ]


worker.function("fail")(fail)


@worker.function("fail.process", run_in="process")
def fail_in_process(payload: dict[str, Any]) -> None:
    fail(payload)


@worker.function("die", run_in="process")
def die() -> None:
    os.kill(os.getpid(), 9)


@worker.function("odd")
def odd(payload: str) -> Any:
    return {"bytes": b"x", "nan": float("nan"), "long": "x" * 70_000}[payload]


def until_cancelled(payload: dict[str, str]) -> str:
    """Tells that it began, and when it was told to stop."""
    Path(payload["file"]).write_text("began")
    current_run().progress(1, "began")
    current_run().cancelled.wait()
    Path(payload["file"]).write_text("cancelled")
    return "what nobody wants"


worker.function("until_cancelled")(until_cancelled)


@worker.function("until_cancelled.process", run_in="process")
def until_cancelled_in_process(payload: dict[str, str]) -> str:
    return until_cancelled(payload)


@worker.function("until_cancelled.async")
async def until_cancelled_in_task(payload: dict[str, str]) -> None:
    tell = Path(payload["file"]).write_text
    tell("began")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        tell("cancelled")
        raise


@worker.function("until_file")
def until_file(payload: dict[str, str]) -> str:
    while not Path(payload["file"]).exists():
        time.sleep(0.01)
    return "there"


@worker.function("deaf", run_in="process")
def deaf(payload: dict[str, str]) -> None:
    """Holds the GIL for good; what it has started ends only if it is killed too."""
    started = subprocess.Popen(payload["starts"].split())
    Path(payload["file"]).write_text(f"{os.getpid()} {started.pid}")
    re.match(r"(a+)+$", "a" * 64 + "b")
