"""An HTTP relay that does to the next requests what it is told: turns them away, or loses their answers."""

from __future__ import annotations

import http.client
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

TIMEOUT_S = 30
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Fault(NamedTuple):
    """``status``: answered without asking. Status 0: the answer is lost, after the request had its effect."""

    status: int
    retry_after: str = ""


LOST = Fault(0)


class Relay:
    """On a free port of 127.0.0.1, before another port of it."""

    def __init__(self, upstream_port: int) -> None:
        self.faults: deque[Fault] = deque()
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers (lower case) of every request."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, upstream_port))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Relay:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail_next(self, *faults: Fault) -> None:
        self.faults.extend(faults)
        self.seen.clear()


def _handler(relay: Relay, upstream_port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            relay.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            fault = relay.faults.popleft() if relay.faults else None
            if fault is not None and fault.status:
                more = [("Retry-After", fault.retry_after)] if fault.retry_after else []
                self._answer(fault.status, more, b"{}")
                return
            status, headers, answer = self._ask(body)
            if fault is LOST:
                self.close_connection = True
                return
            self._answer(status, headers, answer)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = pass_on  # noqa: N815 - the names of http.server

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            upstream = http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=TIMEOUT_S)
            try:
                upstream.request(self.command, self.path, body or None, dict(self.headers))
                response = upstream.getresponse()
                return response.status, response.getheaders(), response.read()
            finally:
                upstream.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests read ``seen`` instead."""

    return Handler
