"""A function called, in whatever thread or process it is: what it returns or raises becomes a value to report."""

from __future__ import annotations

import asyncio
import inspect
import json
import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from secondzero_client.runs import Fatal, Retry, Run, enter_run

Function = Callable[..., Any]

RESULT_BYTES_MAX = 64 * 1024
# Of what the service takes.
ERROR_CHARS_MAX = 1_024


class Done(NamedTuple):
    result: Any


class Failed(NamedTuple):
    """``retry_after``: seconds or a duration like "5m"."""

    error: str
    retryable: bool = True
    retry_after: float | str | None = None


def call(function: Function, run: Run) -> Done | Failed:
    """Call a function, sync or async, as this run. A function without parameters gets no payload."""
    enter_run(run)
    arguments = (run.payload,) if _takes_payload(function) else ()
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result, run))
    except Retry as error:
        return Failed(_text(error), True, error.after)
    except Fatal as error:
        return Failed(_text(error), retryable=False)
    except BaseException as error:  # SystemExit and the like end the run, not the worker
        return Failed(_text(error))
    return _checked(result)


@lru_cache
def _takes_payload(function: Function) -> bool:
    return bool(inspect.signature(function).parameters)


async def _awaited(result: Any, run: Run) -> Any:
    """An async function is cancelled, as tasks are, when nobody waits for it any more."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(result)

    def cancel_task() -> None:
        loop.call_soon_threadsafe(task.cancel)

    run.cancels(cancel_task)
    try:
        return await task
    finally:
        run.cancels(None)


def _checked(result: Any) -> Done | Failed:
    """What cannot be reported is told at once: another attempt would return the same."""
    try:
        size = len(json.dumps(result, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError) as error:
        return Failed(f"the result is no JSON: {error}", retryable=False)
    if size > RESULT_BYTES_MAX:
        return Failed(f"the result has {size} bytes of JSON, at most {RESULT_BYTES_MAX} are kept", retryable=False)
    return Done(result)


def _text(error: BaseException) -> str:
    """The error, and where it was raised: the end of a long trace says more than its beginning."""
    said = "".join(traceback.format_exception_only(type(error), error)).strip()
    trace = "".join(traceback.format_tb(error.__traceback__)[1:])
    half = ERROR_CHARS_MAX // 2 - 1
    return f"{said[:half]}\n{trace[-half:]}".strip()
