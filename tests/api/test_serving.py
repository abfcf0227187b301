"""Serving: shards that are away, other origins, TLS, and ending without losing an answer."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.limits import REQUESTS_PER_S
from bench.usage import children
from engine.clock import wall_ms
from engine.config import Dsn
from engine.local.certificates import write_certificate
from engine.local.mysqld import MysqlServer
from engine.model import partition_of
from engine.rules.placement import shard_of
from tests.support.api import CRON_JOB, PARTITIONS, Tenant, migrated, run_on_first, served
from tests.support.mysql import SchemaPool, running_server
from tests.support.wait import until


@pytest.fixture
def second_server() -> Iterator[MysqlServer]:
    """A server that the test may stop."""
    with running_server("second") as server:
        yield server


def name_on(tenant: Tenant, shard: int) -> str:
    """A name whose job is on this shard."""
    names = (f"job-{n}" for n in range(1_000))
    return next(n for n in names if shard_of(partition_of(tenant.tenant_id, n, PARTITIONS), 2) == shard)


def test_p10_a_shard_that_is_away_takes_only_its_own_jobs_with_it(
    schema_pool: SchemaPool, second_server: MysqlServer
) -> None:
    with schema_pool.schema() as first:
        second = migrated(second_server.dsn("second"))
        with served([first, second]) as server:
            tenant = server.tenant()
            here, away = name_on(tenant, 0), name_on(tenant, 1)
            assert [tenant.put(name).status for name in (here, away)] == [201, 201]
            second_server.stop()
            lost = tenant.get(f"/v1/jobs/{away}")
            assert (lost.status, lost.headers["Retry-After"]) == (503, "1")
            assert tenant.put(away, CRON_JOB | {"timeout": "5s"}).status == 503
            assert tenant.put(here, CRON_JOB | {"timeout": "5s"}).status == 200
            assert tenant.get("/v1/jobs").status == 503, "a list is never silently shorter"
            ready = tenant.get("/readyz")
            assert (ready.status, [each["shard"] for each in ready.json["away"]]) == (503, [1])
            assert tenant.get("/livez").status == 200
            second_server.start()
            until(lambda: tenant.get(f"/v1/jobs/{away}").status == 200)
            assert len(tenant.get("/v1/jobs").json["jobs"]) == 2


def test_p10_while_the_first_shard_is_away_known_keys_stay_in_force(
    schema_pool: SchemaPool, second_server: MysqlServer
) -> None:
    with schema_pool.schema(first=False) as other:
        first = migrated(second_server.dsn("first"), first=True)
        with served([first, other]) as server:
            tenant = server.tenant()
            here = name_on(tenant, 1)
            assert tenant.put(here).status == 201
            second_server.stop()
            assert tenant.get(f"/v1/jobs/{here}").status == 200
            tenant.key = "sz_unknown"
            assert tenant.get(f"/v1/jobs/{here}").status == 503


def test_p10_a_shard_that_is_away_at_the_start_is_found_when_it_answers(
    schema_pool: SchemaPool, second_server: MysqlServer
) -> None:
    with schema_pool.schema() as first:
        second = migrated(second_server.dsn("second"))
        with served([first, second]):
            pass
        second_server.stop()
        with served([first, second], make=False) as server:
            tenant = server.tenant()
            assert tenant.put(name_on(tenant, 0)).status == 201
            assert tenant.put(name_on(tenant, 1)).status == 503
            assert tenant.get("/readyz").status == 503
            second_server.start()
            until(lambda: tenant.put(name_on(tenant, 1)).status in (200, 201))
            assert tenant.get("/readyz").status == 200


def test_each_process_of_each_host_has_its_share_of_a_tenants_calls(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards, api_processes=2, api_hosts=3) as server:
        limit = REQUESTS_PER_S // 6
        assert server.tenant().get("/v1/usage").headers["RateLimit-Policy"] == f'"requests";q={limit};w=1'


def test_when_a_key_was_last_used_is_on_record_at_the_latest_when_the_process_ends(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards) as server:
        tenant = server.tenant()
        called_ms = wall_ms()
        assert tenant.get("/v1/jobs").status == 200
    ((used_ms,),) = server.first_rows("SELECT last_used_at FROM api_keys")
    assert called_ms <= used_ms <= wall_ms()


def test_a_page_of_an_allowed_origin_may_call_and_no_other(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards, cors_origins=("https://console.example.com",)) as server:
        tenant = server.tenant()
        asks = {"Origin": "https://console.example.com", "Access-Control-Request-Method": "PUT"}
        preflight = tenant.call("OPTIONS", "/v1/jobs/a", headers={**asks, "Authorization": ""})
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == "https://console.example.com"
        assert "PUT" in preflight.headers["Access-Control-Allow-Methods"]
        assert "If-Match" in preflight.headers["Access-Control-Allow-Headers"]
        other = tenant.call("GET", "/v1/jobs", headers={"Origin": "https://evil.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_the_limit_of_calls_is_told_on_every_answer(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards) as server:
        assert server.tenant().get("/v1/jobs").headers["RateLimit-Policy"] == f'"requests";q={REQUESTS_PER_S};w=1'


class ApiProcess:
    """`secondzero api` as an operator starts it."""

    def __init__(self, dsns: tuple[Dsn, Dsn], *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        shards = [word for dsn in dsns for word in ("--shard", dsn.text())]
        command = [sys.executable, "-m", "engine", "api", *shards, "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(lambda: self.answers() or self.process.poll() is not None)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self) -> tuple[int, str]:
        """Exit status and what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_sigterm_finishes_the_answers_in_flight_and_ends_with_0(two_shards: tuple[Dsn, Dsn], processes: str) -> None:
    with served(two_shards) as server:
        tenant = server.tenant()
    api = ApiProcess(two_shards, "--api-processes", processes)
    body = b'{"schedule":{"cron":"@daily"},"target":{"http":{"url":"https://example.com/"}}}'
    head = (
        f"PUT /v1/jobs/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", api.port), 20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100"), "the call is being answered"
        os.kill(api.process.pid, signal.SIGTERM)
        until(lambda: not api.answers())
        connection.sendall(body)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 201")
    status, said = api.stop()
    assert status == 0, said
    assert "the API has stopped" in said


def test_p10_a_process_that_is_killed_is_started_again_and_the_others_answer(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards) as server:
        tenant = server.tenant()
    api = ApiProcess(two_shards, "--api-processes", "2")
    until(lambda: len(children(api.process.pid)) == 2)
    first = children(api.process.pid)
    os.kill(first[0], signal.SIGKILL)
    until(lambda: len(set(children(api.process.pid)) - set(first)) == 1)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    connection.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {tenant.key}"})
    assert connection.getresponse().status == 200
    connection.close()
    assert api.stop()[0] == 0
    assert children(api.process.pid) == []


def test_a_port_in_use_is_one_clear_line(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards) as server:
        shards = [word for dsn in two_shards for word in ("--shard", dsn.text())]
        command = [sys.executable, "-m", "engine", "api", *shards, "--port", str(server.port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "in use" in ended.stderr


def test_p9_beyond_this_machine_it_serves_only_under_tls_or_behind_a_proxy(
    two_shards: tuple[Dsn, Dsn], tmp_path: Path
) -> None:
    with served(two_shards):
        pass
    shards = [word for dsn in two_shards for word in ("--shard", dsn.text())]
    refused = subprocess.run(
        [sys.executable, "-m", "engine", "api", *shards, "--listen", "0.0.0.0"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "--behind-proxy" in refused.stderr
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(certificate, key, ["127.0.0.1"])
    for flags in (["--behind-proxy"], ["--tls-cert", str(certificate), "--tls-key", str(key)]):
        api = ApiProcess(two_shards, "--listen", "0.0.0.0", *flags)
        if "--behind-proxy" in flags:
            connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
        else:
            trusting = ssl.create_default_context(cafile=str(certificate))
            connection = http.client.HTTPSConnection("127.0.0.1", api.port, timeout=20, context=trusting)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
        connection.close()
        assert api.stop()[0] == 0


def test_only_a_known_key_of_the_fleet_opens_anything(two_shards: tuple[Dsn, Dsn]) -> None:
    with served(two_shards) as server:
        created = run_on_first(server.dsns[0], "someone")
        assert Tenant(server, created).get("/v1/jobs").status == 200
