"""The measuring receiver: it logs what arrived, when, and says so when asked."""

import socket

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
