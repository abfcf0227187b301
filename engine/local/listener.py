"""Listening sockets: opened before all else, so that a port in use is said at once, and inherited by a child."""

from __future__ import annotations

import errno
import socket

from engine.errors import OperatorError

# Connections that wait while a process that shares the socket is started again.
BACKLOG = 4_096


def open_listener(listen: str, port: int) -> socket.socket:
    """A listening TCP socket on this address, or for ``fd://N`` the one inherited as descriptor N.

    Port 0 takes a free one. OperatorError in one line where the address cannot be had.
    """
    if listen.startswith("fd://"):
        return socket.socket(fileno=int(listen.removeprefix("fd://")))
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        return socket.create_server((listen, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OperatorError(f"cannot listen on {url_of(listen, port)}: {_reason(error)}") from error


def url_of(listen: str, port: int, scheme: str = "http") -> str:
    """The address to type: where all addresses are listened on, this machine's own."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - nothing is bound to it here
    host = everywhere.get(listen, f"[{listen}]" if ":" in listen else listen)
    return f"{scheme}://{host}:{port}"


def free_port() -> int:
    """A port of 127.0.0.1 that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop what uses it or give another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or str(error)
