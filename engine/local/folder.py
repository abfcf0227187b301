"""The folder of everything that `up` runs on this machine, and how other commands find what runs there.

<data>/lock               held by the `up` that runs here
<data>/fleet.json         how many shards were created, and where the history is: written before the first one is
<data>/secondzero.json    where the shards and the API are (mode 0600: it has passwords)
<data>/mysql-1/ …         the shards
<data>/cassandra/         the history, where it is in Cassandra
<data>/log/               what each process says
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson

from engine.config import NEW_FLEET_HISTORY, NEW_FLEET_SHARDS, Dsn, Settings
from engine.contact import Contact
from engine.errors import OperatorError

# struct flock of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True)
class LocalService:
    """What runs in a folder: its shards, the addresses of the API and of the engine's health, and the history's, where
    it is in Cassandra."""

    shards: tuple[Dsn, ...]
    api: str
    engine: str
    cassandra: Contact | None = None


@contextmanager
def held(data: Path) -> Iterator[None]:
    """The folder is made and is this process's alone; OperatorError where another one holds it."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    (data / "log").mkdir(exist_ok=True)
    with (data / "lock").open("a") as lock:
        try:
            # A record lock: this process's alone, not inherited by what it starts.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OperatorError(
                f"{data} is in use by another `secondzero up` (process {_holder(lock)}): stop that one first,"
                " or give another --data"
            ) from error
        yield


def local_history(data: Path, asked: str | None) -> str:
    """Where the history is: fixed when the folder is new. OperatorError where another is asked for."""
    file = data / "fleet.json"
    created = str(_read(file).get("history", NEW_FLEET_HISTORY)) if file.exists() else asked or NEW_FLEET_HISTORY
    if asked not in (None, created):
        raise OperatorError(
            f"{data}: created with history {created}, now started with {asked}; it is fixed for life"
        )
    return created


def local_shard_count(data: Path, asked: int | None, history: str = NEW_FLEET_HISTORY) -> int:
    """How many servers run here: fixed when the folder is new. OperatorError where another number is asked for."""
    file = data / "fleet.json"
    if not file.exists():
        write_private(file, orjson.dumps({"shards": asked or NEW_FLEET_SHARDS, "history": history}))
    count = int(_read(file)["shards"])
    if asked not in (None, count):
        raise OperatorError(f"{data}: created with shard count {count}, now started with {asked}; it is fixed for life")
    return count


@contextmanager
def announced(data: Path, service: LocalService) -> Iterator[None]:
    """Other commands find the service while the block runs."""
    file = data / "secondzero.json"
    document = {
        "shards": [dsn.text() for dsn in service.shards],
        "api": service.api,
        "engine": service.engine,
        "cassandra": service.cassandra.text() if service.cassandra else None,
    }
    write_private(file, orjson.dumps(document))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def local_service(data: Path) -> LocalService:
    """What runs in a folder; OperatorError in one line where nothing does."""
    try:
        with (data / "lock").open() as lock:
            runs = _holder(lock)
        document = _read(data / "secondzero.json") if runs else None
    except FileNotFoundError:
        document = None
    if document is None:
        raise OperatorError(f"nothing runs in {data}: start it with `secondzero up --data {data}`, or give its --data")
    shards = tuple(Dsn.parse(text) for text in document["shards"])
    cassandra = document.get("cassandra")
    return LocalService(
        shards, document["api"], document["engine"], Contact.parse(cassandra) if cassandra else None
    )


def shards_of(settings: Settings) -> tuple[Dsn, ...]:
    """The shards a command is told of: the addresses given, or those of what runs in the data folder."""
    return settings.shards or local_service(settings.data).shards


def stores_of(settings: Settings) -> Settings:
    """The settings with the shards of what runs in the data folder, and its Cassandra if it has one, unless they name
    shards."""
    if settings.shards:
        return settings
    service = local_service(settings.data)
    return replace(settings, shards=service.shards, cassandra=settings.cassandra or service.cassandra)


def write_private(file: Path, content: bytes) -> None:
    """Replace a file in one step; only its owner can read it."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
    new.replace(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise OperatorError(f"{file} is not what `secondzero up` wrote: {error}") from error
    return document


def _holder(lock: IO[str]) -> int:
    """The process that holds the lock, 0 if nobody does. Asking takes nothing, so it disturbs no start."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)
