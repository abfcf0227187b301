"""Two nodes on 127.0.0.1 and 127.0.0.2, one of them away: run by hand (`make ring`), since joining takes a minute.

With two copies LOCAL_QUORUM is both nodes, so that while one is away nothing is acknowledged; what was acknowledged
before is there afterwards, and what was refused is written again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from engine.contact import Contact
from engine.errors import HistoryUnavailable
from engine.events import Events
from engine.history.history import History
from engine.history.schema import create_history
from engine.local.cassandra import CassandraServer
from engine.local.listener import free_port
from engine.rows import FinishedRun, RunRow
from tests.support.mysql import server_folder
from tests.support.wait import until_async

AT_MS = 1_796_083_200_000
TENANT, RUNS = 7, 2_000
JOINED_S = 180.0


def main() -> None:
    with server_folder() as folder:
        storage_port, port = free_port(), free_port()
        first, second = (_node(folder, n, storage_port, port) for n in (1, 2))
        try:
            for node in (first, second):
                node.start()
                print(f"node {node.address} answers")
            contact = Contact(((first.address, port), (second.address, port)), "ring")
            create_history(contact, b"f" * 16, 30)
            asyncio.run(_one_away(contact, second))
        finally:
            for node in (first, second):
                node.stop(0)


def _node(folder: Path, number: int, storage_port: int, port: int) -> CassandraServer:
    seed = f"127.0.0.1:{storage_port}"
    node = CassandraServer(
        folder / f"node-{number}", address=f"127.0.0.{number}", storage_port=storage_port, seed=seed, heap_mib=384
    )
    node.port = port  # the driver learns of the other node by its address, and takes it to listen on the same port
    return node


async def _one_away(contact: Contact, second: CassandraServer) -> None:
    history = History(contact, 30, Events())
    history.start()
    await until_async(lambda: history.connected, JOINED_S)
    await until_async(lambda: _up(history) == 2, JOINED_S)
    await history.write(_runs(0))
    print(f"both there: {RUNS} runs acknowledged, {await _found(history, 0)} found")
    os.kill(second.pid, signal.SIGKILL)
    try:
        await history.write(_runs(RUNS))
        raise AssertionError("acknowledged by one of two")
    except HistoryUnavailable as error:
        print(f"one away: {error}")
    second.stop()
    second.start()
    await until_async(lambda: _up(history) == 2, JOINED_S)
    await history.write(_runs(RUNS))
    print(f"both back: {await _found(history, 0)} of the first found, {await _found(history, RUNS)} of those refused")
    await history.stop()


def _up(history: History) -> int:
    return sum(bool(host.is_up) for host in history._connected().cluster.metadata.all_hosts())


def _runs(first_job: int) -> list[FinishedRun]:
    rows = [
        RunRow(AT_MS, first_job + n + 1, 1, 4, 1, 1, 1, None, 1, 200, AT_MS, AT_MS + 5, 0) for n in range(RUNS)
    ]
    return [FinishedRun(TENANT, 2, row) for row in rows]


async def _found(history: History, first_job: int) -> int:
    found = [await history.read_run(TENANT, [first_job + n + 1], AT_MS) for n in range(RUNS)]
    return sum(each is not None for each in found)


if __name__ == "__main__":
    main()
