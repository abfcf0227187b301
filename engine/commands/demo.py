"""The demo of `up`: a tenant, a thousand jobs for one coming second, and how they went by the receiver's record."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import orjson

from engine.clock import SystemClock
from engine.config import Dsn
from engine.errors import CallerError, OperatorError
from engine.keys import Keys
from engine.local.apt import say_on_stderr as say
from engine.local.folder import LocalService, write_private
from engine.local.receiver import Receiver
from engine.local.record import Report, report
from engine.store.shard import Shard
from engine.store.tenants import create_tenant, insert_key, new_api_key

TENANT = "demo"
JOBS = 1_000
CONNECTIONS = 8

# Time for a slow machine to take the jobs in before their second comes.
AHEAD_MS = 10_000
# What has not come by then counts as lost; a double would come within a moment of its first call.
LATE_MS_MAX = 20_000
DOUBLES_S = 1.0
POLL_S = 0.1
HTTP_TIMEOUT_S = 30


def run_demo(data: Path, service: LocalService, keys: Keys, started: ExitStack) -> Receiver:
    """Run it and print how it went; the receiver stays, for what is tried next."""
    receiver = Receiver(data / "log" / "receiver.log")
    started.callback(receiver.stop)
    receiver.start()
    api = Api(service.api, demo_key(data / "demo.key", service, keys))
    second_ms = (SystemClock().now_ms() + AHEAD_MS) // 1000 * 1000
    names = [f"demo-{number:04}" for number in range(1, JOBS + 1)]
    say(f"demo: putting {JOBS:,} jobs for {rfc3339(second_ms)}")
    put_jobs(api, names, receiver.url, second_ms)
    say("demo: waiting for their second")
    found = await_calls(receiver, names, second_ms)
    print(*report_lines(found, second_ms), *hint_lines(api, receiver.url), sep="\n", flush=True)
    return receiver


class Api:
    """The tenant's side of the API: one connection for each thread."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key
        self._own = threading.local()

    def call(self, method: str, path: str, document: Any = None) -> tuple[int, bytes]:
        """The status and the body; OperatorError where nothing answers."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection = self._connection()
            connection.request(method, path, orjson.dumps(document) if document else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            raise OperatorError(f"{method} {self.url}{path}: {error}") from error

    def _connection(self) -> HTTPConnection:
        if not hasattr(self._own, "connection"):
            self._own.connection = self._new_connection()
        connection: HTTPConnection = self._own.connection
        return connection

    def _new_connection(self) -> HTTPConnection:
        scheme, _, address = self.url.partition("://")
        if scheme == "http":
            return HTTPConnection(address, timeout=HTTP_TIMEOUT_S)
        trust = ssl._create_unverified_context()  # noqa: S323 - our own, certified for the name that others know it by
        return HTTPSConnection(address, timeout=HTTP_TIMEOUT_S, context=trust)


def demo_key(file: Path, service: LocalService, keys: Keys) -> str:
    """The key in the file if it still opens the API, else a new one."""
    if file.exists():
        key = file.read_text().strip()
        if Api(service.api, key).call("GET", "/v1/jobs?page_size=1")[0] == 200:
            return key
    key = asyncio.run(new_key(service.shards[0], keys))
    write_private(file, key.encode() + b"\n")
    return key


async def new_key(first: Dsn, keys: Keys) -> str:
    """A key of the demo's tenant, who is made if need be."""
    shard = Shard(first, 0, keys=keys)
    try:
        return (await create_tenant(shard, TENANT)).api_key
    except CallerError:
        return await further_key(shard)
    finally:
        await shard.close()


async def further_key(shard: Shard) -> str:
    key = new_api_key()
    async with shard.transaction() as connection:
        now_ms = int((await connection.execute("shard_now")).rows[0][0])
        tenant_id = int((await connection.execute("tenant_by_name", {"name": TENANT})).rows[0][0])
        await insert_key(connection, key, tenant_id, "demo", "full", now_ms, None)
    return key


def put_jobs(api: Api, names: Sequence[str], receiver_url: str, second_ms: int) -> None:
    """PUT every job, over several connections; OperatorError with the first answer that is no success."""

    def put(name: str) -> None:
        schedule = {"run_at": rfc3339(second_ms)}
        target = {"http": {"url": f"{receiver_url}/ok/{name}"}}
        status, body = api.call("PUT", f"/v1/jobs/{name}", {"schedule": schedule, "target": target})
        if status not in (200, 201):
            raise OperatorError(f"demo: PUT of {name} was answered {status}: {body.decode(errors='replace')}")

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        list(pool.map(put, names))
    finally:
        pool.shutdown(cancel_futures=True)


def await_calls(receiver: Receiver, names: Sequence[str], second_ms: int) -> Report:
    """Wait for the last call, and a moment for one too many."""
    clock = SystemClock()
    while receiver.count() < len(names) and clock.now_ms() < second_ms + LATE_MS_MAX:
        time.sleep(POLL_S)
    time.sleep(DOUBLES_S)
    return report(receiver.calls(), [(name, second_ms) for name in names])


def report_lines(found: Report, second_ms: int) -> Iterator[str]:
    yield f"\n{found.expected:,} jobs for {rfc3339(second_ms)}, by the receiver's own record:"
    yield f"  called {found.called:,} · lost {found.lost:,} · doubled {found.doubled:,} · early {found.early:,}"
    yield f"  lag p50 {found.lag_p50_ms:,} ms · p99 {found.lag_p99_ms:,} ms · max {found.lag_max_ms:,} ms"


def hint_lines(api: Api, receiver_url: str) -> Iterator[str]:
    """Where the API is, and two commands that work as they stand."""
    auth = f"-H 'Authorization: Bearer {api.key}'"
    in_five_seconds = "'$(date -u -d '+5 seconds' +%FT%TZ)'"
    job = (
        f'{{"schedule": {{"run_at": "{in_five_seconds}"}}, "target": {{"http": {{"url": "{receiver_url}/ok/hello"}}}}}}'
    )
    yield f"\nAPI       {api.url}"
    yield f"demo key  {api.key}"
    yield "\nTry a job that calls the receiver in five seconds, and then look at its runs:"
    curl = "curl -sS" if api.url.startswith("http:") else "curl -sSk"
    yield f"  {curl} -X PUT {api.url}/v1/jobs/hello {auth} -H 'Content-Type: application/json' -d '{job}'"
    yield f"  {curl} {api.url}/v1/jobs/hello/runs {auth}"
    yield "\nCtrl-C stops everything."


def rfc3339(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
