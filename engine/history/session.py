"""A session with the Cassandra of the history, for asyncio: the driver's own thread does the input and output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, OperationTimedOut, RequestExecutionException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    HostStateListener,
    TokenAwarePolicy,
)
from cassandra.query import BatchStatement, PreparedStatement

from engine.contact import Contact
from engine.errors import HistoryUnavailable, OperatorError
from engine.history.statements import statement
from engine.trust import trusting

# A read that finds fewer replicas than this fails, and so does a write: what was recorded is then found again.
CONSISTENCY: Mapping[str, int] = {
    "record_run": ConsistencyLevel.LOCAL_QUORUM,
    "list_runs": ConsistencyLevel.LOCAL_QUORUM,
    "list_ends": ConsistencyLevel.LOCAL_QUORUM,
    "read_run": ConsistencyLevel.LOCAL_QUORUM,
    "read_about": ConsistencyLevel.LOCAL_QUORUM,
    "write_about": ConsistencyLevel.LOCAL_QUORUM,
}

PROTOCOL = 4
CONNECT_TIMEOUT_S = 5
# A list of runs answers from MySQL alone after this; a batch of a recorder has time.
READ_TIMEOUT_S = 2.0
WRITE_TIMEOUT_S = 20.0
# How long a statement waits before it asks again for room in a full socket, and what is left to it at least after that.
FULL_PAUSE_S, MIN_TIMEOUT_S = 0.01, 0.1
# A node that was away is asked again every second: after an hour of it the recorder goes on at once.
RECONNECT_S = 1.0
# A connection that says nothing for this long is given up.
HEARTBEAT_S, HEARTBEAT_TIMEOUT_S = 5, 5
# So it takes at most this long until a node that was lost is known to be.
LOSS_NOTICED_MS = (HEARTBEAT_S + HEARTBEAT_TIMEOUT_S) * 1000

AWAY = (NoHostAvailable, OperationTimedOut, RequestExecutionException, ConnectionException, DriverException, OSError)

# What the driver has to say of nodes that come and go is told by events of ours.
logging.getLogger("cassandra").addHandler(logging.NullHandler())
logging.getLogger("cassandra").propagate = False


def durable_after_ms(sync_ms: int) -> int:
    """How long after its answer a write outlives its node, unless the node is known to be lost by then; ``sync_ms`` is
    the nodes' commitlog_sync_period. They stop their writers only once a sync is late by half of that
    (periodic_commitlog_sync_lag_block)."""
    return sync_ms * 3 // 2 + LOSS_NOTICED_MS


class Losses(HostStateListener):  # type: ignore[misc]
    """Counts how often a node went away. Told in threads of the driver."""

    def __init__(self) -> None:
        self.count = 0

    def on_down(self, host: object) -> None:
        self.count += 1

    def on_up(self, host: object) -> None:
        """It had gone before."""

    def on_add(self, host: object) -> None:
        """It has had no row of ours yet."""

    def on_remove(self, host: object) -> None:
        """Its rows are streamed to others before."""


class HistorySession:
    """A connected session. Made by ``connect``, in a thread; everything else is asyncio's."""

    def __init__(self, cluster: Cluster, session: Session, keyspace: str) -> None:
        self.cluster = cluster
        self.keyspace = keyspace
        self.losses = Losses()
        cluster.register_listener(self.losses)
        self._session = session
        # Every query has its LIMIT: an answer is whole. By the driver's pages it would end after the first 5,000 rows.
        session.default_fetch_size = None
        self._prepared: dict[str, PreparedStatement] = {}

    def prepare(self, *names: str) -> None:
        """Blocks: within ``connect``'s thread."""
        for name in names:
            prepared = self._session.prepare(statement(name, keyspace=self.keyspace))
            prepared.consistency_level = CONSISTENCY[name]
            self._prepared[name] = prepared

    def prepared(self, name: str) -> PreparedStatement:
        return self._prepared[name]

    async def query(self, name: str, values: Sequence[object]) -> list[Any]:
        """Rows of a prepared query; HistoryUnavailable if Cassandra does not answer in READ_TIMEOUT_S."""
        return await self.send(self._prepared[name].bind(values), READ_TIMEOUT_S)

    async def send(self, bound: Any, timeout_s: float) -> list[Any]:
        """Rows that a bound statement or a batch answers with. It waits while the connections take no more."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        try:
            while True:
                try:
                    return await self._send(bound, max(MIN_TIMEOUT_S, until_s - loop.time()))
                except NoHostAvailable as error:
                    if not _full(error) or loop.time() > until_s:
                        raise
                await asyncio.sleep(FULL_PAUSE_S)
        except InvalidRequest as error:
            raise OperatorError(f"Cassandra refuses {_kind(bound)}: {error}") from error
        except AWAY as error:
            raise HistoryUnavailable(told(error)) from error

    async def _send(self, bound: Any, timeout_s: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()
        response: ResponseFuture = self._session.execute_async(bound, timeout=timeout_s)
        response.add_callbacks(partial(_answered, loop, answer), partial(_failed, loop, answer))
        return await answer

    def execute_now(self, name: str, values: Sequence[object] = ()) -> list[Any]:
        """Blocks: for what happens before anything else does."""
        self.prepare(name)
        return list(self._session.execute(self._prepared[name].bind(values), timeout=WRITE_TIMEOUT_S))

    def make(self, name: str, **words: object) -> None:
        """Blocks: makes a keyspace or a table."""
        self._session.execute(statement(name, keyspace=self.keyspace, **words), timeout=WRITE_TIMEOUT_S)

    def replicas(self, routing_key: bytes) -> frozenset[Any]:
        """The nodes that hold a key's rows; empty where there is no choice."""
        metadata = self.cluster.metadata
        if len(metadata.all_hosts()) == 1:
            return frozenset()
        return frozenset(host.endpoint for host in metadata.get_replicas(self.keyspace, routing_key))

    def close(self) -> None:
        self.cluster.shutdown()


def connect(contact: Contact) -> HistorySession:
    """Blocks for some seconds at most. HistoryUnavailable in one line where nobody answers."""
    policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(contact.datacenter or ""))
    account = PlainTextAuthProvider(contact.user, contact.password) if contact.user else None
    cluster = Cluster(
        contact_points=list(contact.points),
        auth_provider=account,
        protocol_version=PROTOCOL,
        connection_class=LibevConnection,
        compression=False,
        ssl_context=trusting(contact.tls) if contact.tls else None,
        connect_timeout=CONNECT_TIMEOUT_S,
        control_connection_timeout=CONNECT_TIMEOUT_S,
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
        idle_heartbeat_interval=HEARTBEAT_S,
        idle_heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                load_balancing_policy=policy, request_timeout=READ_TIMEOUT_S, row_factory=tuple_rows
            )
        },
    )
    try:
        return HistorySession(cluster, cluster.connect(), contact.keyspace)
    except AWAY as error:
        cluster.shutdown()
        raise HistoryUnavailable(f"{contact}: {told(error)}") from error


def tuple_rows(names: Sequence[str], rows: list[Any]) -> list[Any]:
    """Rows as they come."""
    return rows


def told(error: Exception) -> str:
    """What went wrong, on one line: of several nodes, what the first one said."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, Mapping) and error.errors:
        node, reason = next(iter(error.errors.items()))
        return f"{node}: {reason}"
    return " ".join(str(error).split()) or type(error).__name__


def _full(error: NoHostAvailable) -> bool:
    """Whether nothing was sent because each socket had as much to send as it holds: the driver refuses instead of
    waiting. What comes from us is no reason to hold a node for lost."""
    errors = error.errors.values() if isinstance(error.errors, Mapping) else ()
    return bool(errors) and all(isinstance(each, ConnectionBusy) for each in errors)


def _answered(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[Any]], rows: list[Any] | None) -> None:
    """In the driver's thread."""
    _hand_over(loop, answer, rows or [], None)


def _failed(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[Any]], error: Exception) -> None:
    _hand_over(loop, answer, [], error)


def _hand_over(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[list[Any]], rows: list[Any], error: Exception | None
) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
        loop.call_soon_threadsafe(_settle, answer, rows, error)


def _settle(answer: asyncio.Future[list[Any]], rows: list[Any], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(rows)
    else:
        answer.set_exception(error)


def _kind(bound: Any) -> str:
    return "a batch" if isinstance(bound, BatchStatement) else "a statement"
