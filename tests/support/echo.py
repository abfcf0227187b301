"""An endpoint that says everything it was told, in every spelling, and remembers it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import orjson


class Echo:
    """``notices``: the bodies of calls below /notice; ``calls``: the heads of all others."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.calls: list[str] = []
        self.notices: list[bytes] = []

    def answer(self, path: str, head: str, body: bytes) -> tuple[int, bytes]:
        """A failure that tells all it knows, the secrets first, so that they fall into what is kept."""
        if path.startswith("/notice"):
            self.notices.append(head.encode() + body)
            return 200, b""
        self.calls.append(head)
        secrets = "".join(line for line in head.splitlines(keepends=True) if "c4nary" in line)
        spellings = [
            secrets.encode(),
            base64.b64encode(secrets.encode()),
            base64.urlsafe_b64encode(b"x" + secrets.encode()),
            orjson.dumps({"heads": secrets}),
            quote(secrets).encode(),
        ]
        which = path.rpartition("=")[2]
        said = spellings[int(which)] if which.isdigit() and int(which) < len(spellings) else b"".join(spellings)
        cut = int(path.partition("cut=")[2].partition("&")[0] or 0)
        return 500, b"." * cut + said + b"." * 1_024


@contextmanager
def echoing() -> Iterator[Echo]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            head = f"{self.requestline}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            status, said = echo.answer(self.path, head, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    echo = Echo(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield echo
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
