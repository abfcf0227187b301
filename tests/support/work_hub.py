"""The work protocol without a service behind it: hands out runs with intervals of milliseconds and notes all it hears.

For what a worker does when it is told to stop, loses a run or is not answered; that a real service tells it so is
tested with a real service.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INTERVAL = "50ms"


class WorkHub:
    """On a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.ready: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self.heard: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        """By token: (verb, body) of each call."""
        self.stops: dict[str, str] = {}
        self.stale: set[str] = set()
        self.together: list[list[str]] = []
        """The tokens of each call that completed several."""
        self.away = 0
        """So many of the next calls are answered 503."""
        self.refuses: dict[str, int] = {}
        """Status of the answer by verb."""
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> WorkHub:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, function: str, payload: object = None, *, timeout_s: float = 60, interval: str = INTERVAL) -> str:
        """A run that is due now; returns its token."""
        token = f"token-{len(self.claims)}-{time.monotonic_ns()}"
        now = datetime.now(UTC)
        run = {
            "token": token,
            "function": function,
            "payload": payload,
            "job": "job",
            "job_id": "0123456789abcdef",
            "scheduled_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "attempt": 3,
            "idempotency_key": "run_1",
            "deadline": (now + timedelta(seconds=timeout_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "heartbeat_interval": interval,
            "trigger": "schedule",
        }
        with self._changed:
            self.ready.append(run)
            self._changed.notify_all()
        return token

    def ends(self, token: str) -> list[tuple[str, dict[str, Any]]]:
        """What was reported of a run, heartbeats left out."""
        return [(verb, body) for verb, body in self.heard[token] if verb != "heartbeat"]

    def beats(self, token: str) -> list[dict[str, Any]]:
        return [body for verb, body in self.heard[token] if verb == "heartbeat"]

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and document."""
        if self.away:
            self.away -= 1
            return 503, {}
        if path == "/v1/work:claim":
            return self._claim(body)
        if path == "/v1/work:complete":
            return self._complete(body["runs"])
        token, _, verb = path.removeprefix("/v1/work/").partition(":")
        self.heard[token].append((verb, body))
        if token in self.stale:
            return 409, {"title": "stale"}
        if verb in self.refuses:
            return self.refuses[verb], {"title": "refused", "detail": "at most 64 KB"}
        return 200, {"stop": self.stops.get(token, False), "lease_until": ""} if verb == "heartbeat" else {}

    def _complete(self, runs: list[dict[str, Any]]) -> tuple[int, Any]:
        """Several in one call: those that would be refused by themselves are not taken."""
        self.together.append([run["token"] for run in runs])
        if "complete" in self.refuses:
            return self.refuses["complete"], {"title": "refused", "detail": "at most 64 KB"}
        results = []
        for run in runs:
            stale = run["token"] in self.stale
            results.append({"status": 409, "problem": {}} if stale else {"status": 200, "run": {}})
            if not stale:
                self.heard[run["token"]].append(("complete", {"result": run["result"]}))
        return 200, {"results": results}

    def _claim(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.claims.append(body)
        if "claim" in self.refuses:
            return self.refuses["claim"], {"title": "refused"}
        with self._changed:
            self._changed.wait_for(lambda: self._fit(body), timeout=20)
            taken = self._fit(body)[: body["max"]]
            self.ready = [run for run in self.ready if run not in taken]
        return 200, {"runs": taken}

    def _fit(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        return [run for run in self.ready if run["function"] in body["functions"]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A worker that is killed goes without a word."""


def _handler(hub: WorkHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, document = hub.answer(self.path, body)
            raw = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Tests ask the hub."""

    return Handler
