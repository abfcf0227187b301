"""A run in a process of its own: its side of the pipe. It can be killed, and nothing it does can hold up the worker.

Messages to it: "stop". From it: ("progress", percent, note), and at the end ("outcome", Done or Failed).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from secondzero_client.outcome import Done, Function, call
from secondzero_client.runs import Run

_PR_SET_PDEATHSIG = 1


def main(pipe: Connection, function: Function, claimed: dict[str, Any]) -> None:
    """The target of the process."""
    os.setsid()  # a Ctrl-C is the worker's to handle; and what the function starts can be killed with it
    _die_with_parent()
    sending = threading.Lock()

    def send(*message: Any) -> None:
        with sending:
            pipe.send(message)

    run = Run(claimed, lambda percent, note: send("progress", percent, note))
    threading.Thread(target=_listen, args=(pipe, run), daemon=True).start()
    outcome = call(function, run)
    # The result was found to be JSON: as such it crosses, whatever subclass of dict it is here.
    send("outcome", type(outcome).__name__, _plain(outcome.result) if isinstance(outcome, Done) else tuple(outcome))


def _listen(pipe: Connection, run: Run) -> None:
    try:
        while pipe.recv() == "stop":
            run.stop()
    except (EOFError, OSError):
        os._exit(1)  # the worker is gone


def _plain(result: Any) -> Any:
    return json.loads(json.dumps(result))


def _die_with_parent() -> None:
    """The fork server ends with the worker, and this process with it, even one that cannot listen.

    But the server also waits for whoever could use it for processes of his own, so that is given up first.
    """
    server = forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # type: ignore[attr-defined]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
