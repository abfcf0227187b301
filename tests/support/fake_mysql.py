"""A server that speaks just enough of MySQL's protocol to say which version it is."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engine.config import Dsn

OK = b"\0\0\0\x02\0\0\0"
END_OF_ROWS = b"\xfe\0\0\x02\0"
CAPABILITIES = 0x0008_A20D  # protocol 4.1, native passwords by plugin, with a database, secure connection
QUERY = 3
UTF8MB4 = 45
VAR_STRING = 253


@contextmanager
def fake_mysql(version: str) -> Iterator[tuple[Dsn, list[str]]]:
    """Its address and the statements it was asked; it answers its version to any SELECT and OK to all else."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, version, asked), daemon=True)
        thread.start()
        yield Dsn("root", "", "127.0.0.1", listener.getsockname()[1], "x"), asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def _serve(listener: socket.socket, version: str, asked: list[str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with suppress(ConnectionError), connection, connection.makefile("rwb") as stream:
            _send(stream, 0, _greeting(version))
            _receive(stream)
            _send(stream, 2, OK)
            while request := _receive(stream):
                if request[0] == QUERY:
                    asked.append(request[1:].decode())
                _answer(stream, version, asked[-1] if request[0] == QUERY else "")


def _answer(stream, version: str, statement: str) -> None:
    if not statement.startswith("SELECT"):
        _send(stream, 1, OK)
        return
    column = b"".join(_text(text) for text in ("def", "", "", "", "v", "v"))
    column += b"\x0c" + struct.pack("<HIBHBH", UTF8MB4, 1024, VAR_STRING, 0, 0, 0)
    for number, packet in enumerate([b"\1", column, END_OF_ROWS, _text(version), END_OF_ROWS], start=1):
        _send(stream, number, packet)


def _greeting(version: str) -> bytes:
    low, high = struct.pack("<H", CAPABILITIES & 0xFFFF), struct.pack("<H", CAPABILITIES >> 16)
    nonce = b"n" * 20
    head = b"\x0a" + version.encode() + b"\0" + struct.pack("<I", 1) + nonce[:8] + b"\0"
    return (
        head
        + low
        + bytes([UTF8MB4])
        + b"\x02\0"
        + high
        + b"\x15"
        + bytes(10)
        + nonce[8:]
        + b"\0mysql_native_password\0"
    )


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _send(stream, number: int, payload: bytes) -> None:
    stream.write(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)
    stream.flush()


def _receive(stream) -> bytes:
    head = stream.read(4)
    return stream.read(int.from_bytes(head[:3], "little")) if len(head) == 4 else b""
