"""The engine's own listener: /livez, /readyz with the seconds since each stage's last loop, and /metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.clock import Clock
from engine.config import Settings
from engine.health import Board
from engine.metrics_page import metrics_page

# What the metrics are made of, or is shown as seconds.
_NOT_SHOWN = frozenset({"at_ms", "loop_age_ms", "metrics", "client", "started_at_ms", "cpu_ms", "resident_bytes"})

# A stage whose last good loop is older than this does not work: its process is alive, but not ready.
STALLED_MS = 15_000


def health_app(board: Board, settings: Settings, clock: Clock) -> Starlette:
    """Served by the keeper for every process of this host."""

    async def livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> JSONResponse:
        processes = [state for state in board.read() if state]
        problems = _problems(processes, settings.executors, clock.now_ms())
        body = {
            "status": "ok" if not problems else "not ready",
            "problems": problems,
            "processes": [_shown(state, clock.now_ms()) for state in processes],
        }
        return JSONResponse(body, status_code=200 if not problems else 503)

    async def metrics(_: Request) -> Response:
        return Response(metrics_page(board, clock), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


def _problems(processes: list[dict[str, Any]], executors: int, now_ms: int) -> list[str]:
    running = sum(1 for state in processes if state["process"].startswith("executor"))
    problems = [] if running == executors else [f"{running} of {executors} executors are running"]
    for state in processes:
        for stage, age_ms in state["loop_age_ms"].items():
            if age_ms + now_ms - state["at_ms"] > STALLED_MS:
                problems.append(f"{state['process']}: {stage} has not run for {age_ms // 1000} s")
    return problems


def _shown(state: dict[str, Any], now_ms: int) -> dict[str, Any]:
    since_s = {
        stage: round((age_ms + now_ms - state["at_ms"]) / 1000, 1) for stage, age_ms in state["loop_age_ms"].items()
    }
    shown = {key: value for key, value in state.items() if key not in _NOT_SHOWN}
    return {**shown, "seconds_since": since_s}
