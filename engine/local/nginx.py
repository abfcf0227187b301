"""A receiver to measure against: an nginx that answers at once and logs every call with the millisecond it came.

    /any/path      200 at once
    /slow/path     200 after about two seconds
    /flaky/path    503 to the first attempt of a run, 200 to the others
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from engine.clock import wall_ms
from engine.errors import OperatorError
from engine.local import apt
from engine.local.certificates import write_certificate
from engine.local.listener import free_port
from engine.local.process import end_child, spawn
from engine.local.record import Call

# The log is written in blocks, so that writing it costs the receiver next to nothing; the last one is asked for.
_CONFIG = """
worker_processes 1;
{affinity}
worker_rlimit_nofile 65536;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 20000; accept_mutex off; }}
http {{
  log_format calls '$msec $request_time $request_uri $http_idempotency_key $http_x_attempt $http_x_scheduled_at '
                   '$status';
  access_log {log};
  client_body_temp_path {folder}/tmp; proxy_temp_path {folder}/tmp; fastcgi_temp_path {folder}/tmp;
  uwsgi_temp_path {folder}/tmp; scgi_temp_path {folder}/tmp;
  keepalive_requests 1000000000;
  keepalive_timeout 75s;
  server_tokens off;
  ssl_session_cache shared:sink:16m; ssl_protocols TLSv1.2 TLSv1.3;
  allow 127.0.0.0/8; deny all;
  server {{
    listen {address}:{port} backlog=16384;
    {tls}
    location / {{ return 200 'ok'; }}
    location /slow/ {{ limit_rate 100; return 200 '{slow_body}'; }}
    location /flaky/ {{ if ($http_x_attempt = 1) {{ return 503; }} return 200 'ok'; }}
    location = /.received {{ access_log off; stub_status; }}
  }}
  {others}
}}
"""
_TLS = """listen {address}:{tls_port} ssl backlog=16384;
    ssl_certificate {folder}/sink.pem; ssl_certificate_key {folder}/sink.key;"""
# Addresses of their own behind the one socket: each group answers with a certificate that names it.
_OTHERS = """server {{
    {listen}
    ssl_certificate {folder}/sink-{number}.pem; ssl_certificate_key {folder}/sink-{number}.key;
    location / {{ return 200 'ok'; }}
  }}"""
# A real certificate names a few hosts; a trust store has some two hundred authorities.
ADDRESSES_PER_CERTIFICATE = 10

# The receiver, and the load generator that benches measure beside, fetched together.
_PACKAGES = ("nginx", "wrk")
_FLUSH = "/.flush/"
# At 100 bytes a second, of which nginx lets the first through at once.
SLOW_BYTES = 350
STOP_S_MAX = 10


class Sink:
    """A running receiver; a context manager. With TLS, clients trust ``certificate``."""

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        address: str = "127.0.0.1",
        tls_addresses: Sequence[str] = (),
        cpu: int | None = None,
        log: bool = True,
    ) -> None:
        """``address`` 0.0.0.0 answers on every 127.x.y.z, each an origin of its own; no other peer is let in.

        ``tls_addresses`` are those of them that answer over TLS besides 127.0.0.1. ``cpu`` pins it to one core;
        without ``log`` there are no calls to read.
        """
        self.folder = folder
        self.port = free_port()
        self.tls_port = free_port() if tls else 0
        self.certificate = folder / "sink.pem"
        self._log = folder / "calls.log"
        self._flushes = 0
        self._asked = 0
        folder.mkdir(parents=True, exist_ok=True)
        if tls:
            write_certificate(self.certificate, folder / "sink.key", ["localhost", "127.0.0.1"])
        others = self._others(tls_addresses)
        (folder / "nginx.conf").write_text(self._config(address, cpu, log, others))
        with (folder / "start.log").open("wb") as said:
            self._process = spawn(_command(folder), said, signal.SIGTERM)
        self._wait_until_it_answers()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that was started; the work is done by its children."""
        return self._process.pid

    def received(self) -> int:
        """Requests so far, asked without disturbing: not all of them stand in the log yet."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as asking:
            asking.sendall(b"GET /.received HTTP/1.1\r\nHost: sink\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: asking.recv(4096), b""))
        self._asked += 1
        return int(answer.split(b"requests")[1].split()[2]) - self._asked

    def calls(self) -> Iterator[Call]:
        """Every call of a run received so far, in the order of the log."""
        self._flush()
        with self._log.open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                ended, took, uri, key, attempt, scheduled_at, status = line.split()
                if key != "-":
                    yield Call(
                        _ms(ended) - _ms(took),
                        key,
                        int(attempt),
                        _time_ms(scheduled_at),
                        _name(uri),
                        int(status),
                    )

    def stop(self) -> None:
        """Stop the receiver; its log stays."""
        end_child(self._process, STOP_S_MAX)

    def _others(self, addresses: Sequence[str]) -> str:
        """A server for each group of addresses; ``certificate`` grows to hold all of them."""
        servers = []
        for number, first in enumerate(range(0, len(addresses), ADDRESSES_PER_CERTIFICATE)):
            group = addresses[first : first + ADDRESSES_PER_CERTIFICATE]
            certificate = self.folder / f"sink-{number}.pem"
            write_certificate(certificate, certificate.with_suffix(".key"), group)
            with self.certificate.open("ab") as trusted:
                trusted.write(certificate.read_bytes())
            listen = " ".join(f"listen {address}:{self.tls_port} ssl;" for address in group)
            servers.append(_OTHERS.format(listen=listen, folder=self.folder, number=number))
        return "\n  ".join(servers)

    def _config(self, address: str, cpu: int | None, log: bool, others: str) -> str:
        tls = _TLS.format(folder=self.folder, address=address, tls_port=self.tls_port) if self.tls_port else ""
        affinity = "" if cpu is None else f"worker_cpu_affinity {1 << cpu:b};"
        calls = f"{self._log} calls buffer=1m" if log else "off"
        return _CONFIG.format(
            folder=self.folder,
            address=address,
            port=self.port,
            tls=tls,
            affinity=affinity,
            log=calls,
            others=others,
            slow_body="x" * SLOW_BYTES,
        )

    def _wait_until_it_answers(self) -> None:
        deadline_ms = wall_ms() + 10_000
        while wall_ms() < deadline_ms and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                continue
        self.stop()
        said = (self.folder / "start.log").read_text(errors="replace").strip().splitlines()
        raise OperatorError(f"nginx did not start: {said[-1] if said else 'it said nothing'}")

    def _flush(self) -> None:
        """Have the log written out. A call of our own marks its end: on USR1 the worker writes what it holds."""
        self._flushes += 1
        marker = f"{_FLUSH}{self._flushes}"
        with socket.create_connection(("127.0.0.1", self.port), 5) as asking:
            asking.sendall(f"GET {marker} HTTP/1.1\r\nHost: sink\r\nConnection: close\r\n\r\n".encode())
            while asking.recv(4096):
                pass
        self._process.send_signal(signal.SIGUSR1)
        deadline_ms = wall_ms() + 10_000
        while f" {marker} ".encode() not in self._log.read_bytes()[-4096:]:
            if wall_ms() > deadline_ms:
                raise OperatorError("nginx did not write its log within 10 s")


def _ms(seconds: str) -> int:
    """nginx writes seconds with three decimals."""
    return int(seconds.replace(".", ""))


@lru_cache(4096)
def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _name(uri: str) -> str:
    """A job's name is the last part of the path it calls."""
    return uri.partition("?")[0].rpartition("/")[2]


def _command(folder: Path) -> list[str]:
    return [*tool("usr/sbin/nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def tool(path: str) -> list[str]:
    """The command of nginx or wrk: the machine's own, else one unpacked for this user alone."""
    installed = shutil.which(path.rpartition("/")[2], path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if installed:
        return [installed]
    try:
        return apt.loader_command(apt.fetch(_PACKAGES), path)
    except OperatorError as error:
        raise OperatorError(f"benches need nginx and wrk: install them (apt-get install nginx wrk); {error}") from error
