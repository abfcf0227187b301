"""One request on one connection, for threads: kept-alive connections of the standard library's HTTP client.

It costs 0.1 ms of CPU a call; httpx takes five times that (and is what the async client stands on), which is felt in a
worker that reports thousands of results a second.
"""

from __future__ import annotations

import http.client
import queue
import select
import ssl
from urllib.parse import urlsplit

from secondzero_client.requests import Answer
from secondzero_client.retries import NoAnswer

IDLE_CONNECTIONS_MAX = 64
CONNECT_S_MAX = 5.0


class Transport:
    """Connections to one address. Threads may share it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address such as https://api.example.com")
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue(IDLE_CONNECTIONS_MAX)

    def send(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> Answer | NoAnswer:
        """The answer, or why there is none."""
        try:
            connection = self._connection(timeout_s)
        except OSError as error:
            return NoAnswer(error, sent=False)
        try:
            connection.request(method, self._prefix + target, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return NoAnswer(error, sent=True)
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def close(self) -> None:
        """Close what is idle."""
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return self._connect(timeout_s)
            if _is_open(connection):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        wait_s = min(timeout_s, CONNECT_S_MAX)
        if self._tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=wait_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=wait_s)
        connection.connect()
        connection.sock.settimeout(timeout_s)
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        try:
            self._idle.put_nowait(connection)
        except queue.Full:
            connection.close()


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection is still one: a closed or unasked-for answer makes it readable."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
