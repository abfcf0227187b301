"""The measuring receiver: it logs what arrived, when, and says so when asked."""

import socket
import ssl

import pytest

from engine.clock import wall_ms
from engine.errors import OperatorError
from engine.local import nginx
from engine.local.nginx import Sink


def post(port, path, headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode())
        return connection.recv(4096)


def test_the_sink_logs_each_run_with_its_millisecond(tmp_path):
    begins_ms = wall_ms()
    with Sink(tmp_path) as sink:
        for attempt in (1, 2):
            headers = {"Idempotency-Key": "run_1", "X-Attempt": attempt, "X-Scheduled-At": "2026-01-01T09:00:00.007Z"}
            assert post(sink.port, "/hooks/job-7?x=y", headers).startswith(b"HTTP/1.1 200")
        post(sink.port, "/not-a-run", {})
        calls = list(sink.calls())
        assert [call.attempt for call in calls] == [1, 2]
        assert calls[0].key == "run_1"
        assert calls[0].name == "job-7"
        assert calls[0].status == 200
        assert calls[0].scheduled_at_ms == 1_767_258_000_007
        assert begins_ms <= calls[0].arrival_ms <= calls[1].arrival_ms <= wall_ms()
        assert list(sink.calls()) == calls


def test_every_loopback_address_is_an_origin_of_its_own(tmp_path):
    with Sink(tmp_path, address="0.0.0.0") as sink, socket.create_connection(("127.9.8.7", sink.port), 5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_without_the_tools_the_error_says_how_to_get_them(monkeypatch):
    def unreachable(_):
        raise OperatorError("the archive is out of reach")

    monkeypatch.setattr(nginx.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(nginx.apt, "fetch", unreachable)
    with pytest.raises(OperatorError, match=r"apt-get install nginx wrk.*out of reach"):
        nginx.tool("usr/bin/wrk")


def test_requests_are_counted_without_counting_the_question(tmp_path):
    with Sink(tmp_path) as sink:
        assert sink.received() == 0
        post(sink.port, "/a", {"Idempotency-Key": "run_1", "X-Attempt": 1, "X-Scheduled-At": "2026-01-01T09:00:00Z"})
        assert [sink.received(), sink.received()] == [1, 1]


def test_slow_and_flaky_endpoints(tmp_path):
    headers = {"Idempotency-Key": "run_1", "X-Attempt": 1, "X-Scheduled-At": "2026-01-01T09:00:00Z"}
    with Sink(tmp_path) as sink, socket.create_connection(("127.0.0.1", sink.port), 5) as slow:
        assert post(sink.port, "/flaky/job", headers).startswith(b"HTTP/1.1 503")
        assert post(sink.port, "/flaky/job", headers | {"X-Attempt": 2}).startswith(b"HTTP/1.1 200")
        asked_ms = wall_ms()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        slow.sendall(f"GET /slow/job HTTP/1.1\r\nHost: x\r\n{lines}Connection: close\r\n\r\n".encode())
        while slow.recv(4096):
            pass
        assert wall_ms() - asked_ms > 1_000
        arrival_ms = [call.arrival_ms for call in sink.calls()][-1]
        assert arrival_ms - asked_ms < 500  # a call arrives when it begins, however long it takes


def test_addresses_over_tls_are_named_by_their_certificates(tmp_path):
    addresses = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(120)]
    with Sink(tmp_path, tls=True, address="0.0.0.0", tls_addresses=addresses) as sink:
        context = ssl.create_default_context(cafile=str(sink.certificate))
        for address in ("127.0.0.1", addresses[0], addresses[-1]):
            with (
                socket.create_connection((address, sink.tls_port), 5) as connection,
                context.wrap_socket(connection, server_hostname=address) as tls,
            ):
                tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert tls.recv(4096).startswith(b"HTTP/1.1 200")
