"""The API over a real socket: a server in a thread, and a client that is one tenant."""

from __future__ import annotations

import asyncio
import http.client
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import uvloop

from api.routes import operator_routes, routes
from api.server import Server, make_server
from api.service import Service
from engine.clock import Clock, SystemClock
from engine.config import Dsn, Settings
from engine.events import Events
from engine.keys import Keys
from engine.local.listener import open_listener
from engine.model import RunState, partition_of
from engine.rules.placement import shard_of
from engine.settings import keys_of
from engine.stages.days import Days
from engine.store.connection import Row
from engine.store.fleet import create_fleet
from engine.store.shard import Shard
from engine.store.tenants import NewTenant, create_tenant
from migrations.apply import apply
from tests.support.mysql import query
from tests.support.wait import until

PARTITIONS = 8
TIMEOUT_S = 20

CRON_JOB: dict[str, Any] = {
    "schedule": {"cron": "0 9 * * *", "time_zone": "Europe/Paris"},
    "target": {"http": {"url": "https://example.com/hook"}},
}


class Reply(NamedTuple):
    """An answer; ``json`` is None where there is no body."""

    status: int
    headers: http.client.HTTPMessage
    json: Any
    body: bytes


class ApiServer:
    """A served fleet of its own."""

    def __init__(self, dsns: Sequence[Dsn], port: int, service: Service, server: Server) -> None:
        self.dsns = dsns
        self._server = server
        self.port = port
        self.service = service
        self.failures: list[Exception] = []
        service.events.subscribe(self._note)

    def _note(self, name: str, fields: dict[str, Any]) -> None:
        if name == "api.failed":
            self.failures.append(fields["error"])

    def connections(self) -> int:
        """Those that are open now."""
        return len(self._server.server_state.connections)

    def tenant(self) -> Tenant:
        """A new tenant with a full key."""
        return Tenant(self, run_on_first(self.dsns[0], secrets.token_hex(6)))

    def tenant_of(self, *keys: str) -> Tenant:
        """A new tenant of a server that has keys of its own for secrets."""
        return Tenant(self, run_on_first(self.dsns[0], secrets.token_hex(6), Keys(keys)))

    def rows(self, sql: str) -> list[Row]:
        """What a query finds on all shards together."""
        return [row for dsn in self.dsns for row in asyncio.run(query(dsn, sql))]

    def first_rows(self, sql: str) -> list[Row]:
        """What a query finds on the first shard."""
        return asyncio.run(query(self.dsns[0], sql))


class Tenant:
    """A client with one tenant's key."""

    def __init__(self, server: ApiServer, created: NewTenant) -> None:
        self.server = server
        self.tenant_id = created.tenant_id
        self.key: str | None = created.api_key

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One call on a connection of its own; a body that is no bytes is sent as JSON."""
        sent = dict(headers or {})
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key}")
        if body is not None and not isinstance(body, bytes):
            body = orjson.dumps(body)
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        if response.status == 500:
            raise AssertionError(f"{method} {path} answers 500") from self.server.failures[-1]
        is_json = response.headers.get_content_type().endswith("json")
        return Reply(response.status, response.headers, orjson.loads(raw) if raw and is_json else None, raw)

    def put(self, name: str, job: object = None, **headers: str) -> Reply:
        return self.call("PUT", f"/v1/jobs/{name}", CRON_JOB if job is None else job, headers)

    def get(self, path: str) -> Reply:
        return self.call("GET", path)

    def job(self, name: str) -> Any:
        """The job as it is answered; it must be there."""
        reply = self.get(f"/v1/jobs/{name}")
        assert reply.status == 200, reply
        return reply.json


@contextmanager
def served(
    dsns: Sequence[Dsn], clock: Clock | None = None, *, make: bool = True, operators: bool = False, **settings: Any
) -> Iterator[ApiServer]:
    """Make these clean shards a fleet, unless they are one, and serve them on a free port."""
    if make:
        asyncio.run(make_fleet(dsns))
    given = Settings(shards=tuple(dsns), **settings)
    service = Service(given, clock or SystemClock(), Events())
    with open_listener("127.0.0.1", 0) as listener:
        server = make_server(service, given, operator_routes(service) if operators else routes(service))

        async def serve() -> None:
            await service.start()
            try:
                await server.serve(sockets=[listener])
            finally:
                await service.stop()

        thread = threading.Thread(target=uvloop.run, args=(serve(),))  # as the product does
        thread.start()
        try:
            until(lambda: server.started)
            yield ApiServer(dsns, listener.getsockname()[1], service, server)
        finally:
            server.should_exit = True
            thread.join()


def migrated(dsn: Dsn, *, first: bool = False) -> Dsn:
    """A new shard of a server of the test's own."""
    asyncio.run(apply(dsn, first=first))
    return dsn


async def make_fleet(dsns: Sequence[Dsn]) -> None:
    """One fleet with its first days."""
    shards = [Shard(dsn, index, keys=keys_of(Settings())) for index, dsn in enumerate(dsns)]
    await create_fleet(shards, PARTITIONS)
    for shard in shards:
        await Days(shard, Events()).run_once(SystemClock().now_ms())
        await shard.close()


def run_on_first(dsn: Dsn, name: str, keys: Keys | None = None) -> NewTenant:
    """A tenant of this name."""

    async def create() -> NewTenant:
        shard = Shard(dsn, 0, keys=keys or keys_of(Settings()))
        try:
            return await create_tenant(shard, name)
        finally:
            await shard.close()

    return asyncio.run(create())


class RunTable:
    """Runs of one job, written as the engine would leave them."""

    def __init__(self, tenant: Tenant, name: str) -> None:
        self._tenant = tenant
        self.name = name
        self.job_id = int(tenant.job(name)["job_id"], 16)
        self.partition_id = partition_of(tenant.tenant_id, name, PARTITIONS)
        dsns = tenant.server.dsns
        self._dsn = dsns[shard_of(self.partition_id, len(dsns))]

    def query(self, sql: str) -> list[Row]:
        """On the shard that has the job."""
        return asyncio.run(query(self._dsn, sql))

    def add(self, scheduled_at_ms: int, state: RunState, **columns: object) -> None:
        """One run; a failed one becomes a dead letter too."""
        row = {
            "partition_id": self.partition_id,
            "scheduled_at": scheduled_at_ms,
            "job_id": self.job_id,
            "tenant_id": self._tenant.tenant_id,
            "version": 1,
            "state": int(state),
            "priority": 2,
            "trigger_kind": 1,
            "attempt": 1,
            **columns,
        }
        self._insert("runs", row)
        if state == RunState.FAILED:
            self._insert("dead_letters", row | {"tries": 1, "died_at": scheduled_at_ms + 1, "name": self.name})

    def states(self) -> list[RunState]:
        """In order of time."""
        rows = self.query(f"SELECT state FROM runs WHERE job_id = {self.job_id} ORDER BY scheduled_at")
        return [RunState(row[0]) for row in rows]

    def _insert(self, table: str, row: Mapping[str, object]) -> None:
        values = ", ".join(map(repr, row.values()))
        self.query(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})")
