"""`secondzero up`: MySQL shards, migrations, engine and API on this machine, until Ctrl-C.

What is started is stopped in the reverse order: first the API, so that nothing new is accepted, then the engine, which
drains, then MySQL. Whatever happens to this process, the kernel ends its children.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from engine.clock import SystemClock
from engine.commands.brakes import this_user
from engine.commands.demo import demo_key, run_demo
from engine.commands.migrate import migrate
from engine.config import GROUPS, NEW_FLEET_HISTORY, Dsn, Settings
from engine.contact import Contact
from engine.errors import OperatorError
from engine.keys import make_key_file
from engine.local.apt import say_on_stderr as say
from engine.local.cassandra import SYNC_MS, CassandraServer
from engine.local.child import Child
from engine.local.folder import LocalService, announced, held, local_history, local_shard_count
from engine.local.kept import Kept
from engine.local.listener import free_port, open_listener, url_of
from engine.local.mysqld import MysqlServer
from engine.local.worker import KEY_VARIABLE, LocalWorker
from engine.rules.brakes import BrakeKind
from engine.settings import KEY_FILE, asked_history, keys_of, load_settings, settings_arguments
from engine.store.brakes import pull
from engine.store.shard import Shard

DATABASE = "secondzero"
LOOPBACK = ("127.0.0.0/8", "::1/128")

LOOK_EVERY_S = 0.2


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, wherever the start or the waiting was."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "up",
        help="run everything on this machine: MySQL shards, engine and API",
        description="Starts everything on this machine and prints `ready http://…` once it serves. Ctrl-C drains and"
        " stops it; run again on the same folder it goes on where it stopped.",
        allow_abbrev=False,
    )
    settings_arguments(parser, GROUPS)
    parser.add_argument("--demo", action="store_true", help="a tenant `demo`, and a thousand jobs for one second")
    parser.add_argument(
        "--worker",
        type=module_and_worker,
        metavar="MODULE:WORKER",
        help="a worker of functions beside the rest, by the key in SECONDZERO_API_KEY, else that of the tenant `demo`",
    )
    parser.add_argument("--paused", action="store_true", help="call nothing until `secondzero resume --all`")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    if args.demo:
        settings = replace(settings, allow_networks=tuple(dict.fromkeys((*settings.allow_networks, *LOOPBACK))))
    try:
        with stopping_on_signals(), ExitStack() as started, held(settings.data):
            settings = replace(settings, secrets_key_file=key_file(settings))
            service, kept = start_all(settings, started, paused=args.paused)
            print(f"ready {service.api}", flush=True)
            if args.worker:
                kept.append(start_worker(args.worker, settings, service, started))
            if args.demo:
                receiver = run_demo(settings.data, service, keys_of(settings), started)
                kept.append(Kept("the receiver", receiver.start, receiver.exit_status, say))
            keep(kept)
    except Stopped:
        say("stopped")
    except OSError as error:
        raise OperatorError(f"{error.filename or settings.data}: {error.strerror or error}") from error
    return 0


def module_and_worker(text: str) -> str:
    """Where a worker is, as secondzero-worker takes it."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:WORKER, for example reports:worker")
    return text


def start_worker(worker: str, settings: Settings, service: LocalService, started: ExitStack) -> Kept:
    """It is stopped before anything that it needs."""
    key = os.environ.get(KEY_VARIABLE) or demo_key(settings.data / "demo.key", service, keys_of(settings))
    local = LocalWorker(worker, service.api, key, settings.data / "log" / "worker.log")
    say(f"starting the worker {worker}")
    started.callback(local.stop)
    local.start()
    return local.kept()


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM raises Stopped; while that is obeyed, further ones change nothing."""

    def stop(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    yield


def start_all(settings: Settings, started: ExitStack, *, paused: bool = False) -> tuple[LocalService, list[Kept]]:
    """Start everything in order; returns where it is, and what is to be kept running."""
    listener = started.enter_context(open_listener(settings.listen, settings.port))
    service_url = url_of(settings.listen, listener.getsockname()[1], "https" if settings.tls_cert else "http")
    if not settings.shards:
        settings = replace(settings, history=local_history(settings.data, asked_history(settings)))
    node = launch_cassandra(settings, started)
    servers = [] if settings.shards else start_servers(settings, started)
    settings = replace(
        settings,
        shards=settings.shards or tuple(server.dsn(DATABASE) for server in servers),
        shard_count=None,
        port=listener.getsockname()[1],  # for the guard of targets: nobody may call us through ourselves
        metrics_port=settings.metrics_port or free_port(),
    )
    own = settings.data / KEY_FILE
    if settings.secrets_key_file == own and make_key_file(own):
        say(f"made the key of secrets in {own}: without it they cannot be read; keep a copy elsewhere")
    if node is not None:
        node.wait_ready()
        address = Contact(((node.address, node.port),), DATABASE)
        settings = replace(settings, cassandra=address, cassandra_sync_ms=SYNC_MS)
    say("checking the databases")
    asyncio.run(migrate(settings.shards, keys_of(settings), settings.partition_count, settings))
    if paused:
        asyncio.run(pause_all(settings.shards[0]))
    engine_url = url_of("127.0.0.1", settings.metrics_port)
    service = LocalService(settings.shards, service_url, engine_url, settings.cassandra)
    started.enter_context(announced(settings.data, service))
    children = start_children(settings, service, listener, started)
    kept = [*(keep_server(server) for server in servers), *([keep_cassandra(node)] if node else [])]
    return service, [*kept, *(child.kept() for child in children)]


async def pause_all(dsn: Dsn) -> None:
    """Before anything is there that could call: for data that come from a backup."""
    first = Shard(dsn, 0)
    try:
        brake = await pull(first, BrakeKind.ALL, "", this_user(), "up --paused")
    finally:
        await first.close()
    say(f"paused by {brake.pulled_by}; secondzero resume --all lets calls begin")


def key_file(settings: Settings) -> Path | None:
    """The folder's own, unless others are given."""
    given = settings.secrets_keys or settings.secrets_key_file
    return settings.secrets_key_file if given else settings.data / KEY_FILE


def launch_cassandra(settings: Settings, started: ExitStack) -> CassandraServer | None:
    """The node that keeps the history, unless it is elsewhere; it starts while the shards do."""
    if settings.history != "cassandra" or settings.cassandra is not None:
        return None
    if (settings.data / "mysql-1").exists() and not (settings.data / "cassandra").exists():
        raise OperatorError(f"{settings.data}: its history is in a Cassandra elsewhere; give its address: --cassandra")
    say(f"starting Cassandra in {settings.data}")
    node = CassandraServer(settings.data / "cassandra", say=say)
    started.callback(node.stop)
    node.launch()
    return node


def start_servers(settings: Settings, started: ExitStack) -> list[MysqlServer]:
    """The MySQL of each shard; all of them start at the same time."""
    count = local_shard_count(settings.data, settings.shard_count, settings.history or NEW_FLEET_HISTORY)
    say(f"starting MySQL for {count} shards in {settings.data}")
    say_once = cache(say)  # what is true of the machine is the same for each of them
    servers = [MysqlServer(settings.data / f"mysql-{number + 1}", say=say_once) for number in range(count)]
    for server in servers:
        started.callback(server.stop)
        server.launch()
    for server in servers:
        server.wait_ready()
    return servers


def keep_server(server: MysqlServer) -> Kept:
    def start() -> None:
        server.stop()  # lets go of the folder
        server.launch()

    return Kept(f"MySQL in {server.home}", start, server.exit_status, say)


def keep_cassandra(node: CassandraServer) -> Kept:
    def start() -> None:
        node.stop()
        node.launch()

    return Kept(f"Cassandra in {node.home}", start, node.exit_status, say)


def start_children(
    settings: Settings, service: LocalService, listener: socket.socket, started: ExitStack
) -> list[Child]:
    """Engine and API; returns once both are ready."""
    api_settings = replace(settings, listen=f"fd://{listener.fileno()}")
    engine = Child("engine", settings)
    api = Child("api", api_settings, [listener.fileno()])
    for child in (engine, api):
        say(f"starting the {child.name}")
        started.callback(child.stop)
        child.start()
    started.callback(listener.close)  # the first thing to end: whoever connects then is refused at once
    engine.wait_ready(service.engine)
    api.wait_ready(service.api)
    return [engine, api]


def keep(kept: Sequence[Kept]) -> None:
    """Until Stopped."""
    clock = SystemClock()
    while True:
        for each in kept:
            each.look(clock.boot_ms())
        time.sleep(LOOK_EVERY_S)
