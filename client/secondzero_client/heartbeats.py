"""Heartbeats: a thread that says of every held run that it is alive, whatever the functions do meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from secondzero_client.client import Client
from secondzero_client.errors import ApiError, Conflict, NotFound, SecondZeroError
from secondzero_client.execution import Held
from secondzero_client.work import heartbeat

# So many are under way at the same time; one that is not answered is given up when the next one is due.
SENDERS_MAX = 32
# After one that was not answered.
AGAIN_S = 1.0
CANCELLED = "cancelled"

_log = logging.getLogger("secondzero.worker")


class Heartbeats:
    """Begins with ``start``; runs are added when they are claimed, and removed when their end has been reported."""

    def __init__(self, client: Client, senders: int) -> None:
        self._client = client
        self._held: dict[str, Held] = {}
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(min(senders, SENDERS_MAX), thread_name_prefix="secondzero-heartbeat")
        self._stopped = False

    def start(self) -> None:
        threading.Thread(target=self._loop, name="secondzero-heartbeats", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, held: Held) -> None:
        with self._changed:
            self._held[held.token] = held
            if len(self._held) == 1:
                self._changed.notify()

    def remove(self, held: Held) -> None:
        with self._changed:
            self._held.pop(held.token, None)

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now_s = time.monotonic()
                due = [held for held in self._held.values() if _moment_s(held) <= now_s]
                if not due:
                    self._changed.wait(min((_moment_s(held) - now_s for held in self._held.values()), default=None))
                    continue
                for held in due:
                    self._act(held, now_s)

    def _act(self, held: Held, now_s: float) -> None:
        if held.ends_s is not None and held.ends_s <= now_s:
            held.ends_s = None
            self._tell(held, "deadline")
        if held.beat_s <= now_s:
            held.beat_s = float("inf")  # until this one is answered
            self._pool.submit(self._beat, held)

    def _beat(self, held: Held) -> None:
        pause_s = AGAIN_S
        try:
            answer = heartbeat(self._client, held.token, *held.progress, timeout_s=held.interval_s)
            pause_s = held.interval_s
            if answer["stop"]:
                self._tell(held, str(answer["stop"]))
        except (Conflict, NotFound):
            self._tell(held, "lost")
        except SecondZeroError as error:
            _log.warning("%s: heartbeat: %s", held.name, error)
            pause_s = held.interval_s if isinstance(error, ApiError) else AGAIN_S
        with self._changed:
            held.beat_s = float("inf") if held.stopped else time.monotonic() + pause_s
            self._changed.notify()

    def _tell(self, held: Held, why: str) -> None:
        if held.stop(why):
            _log.warning("%s: stopped: %s", held.name, _WHY.get(why, why))


_WHY = {
    CANCELLED: "cancelled by the tenant",
    "deadline": "its time is over",
    "lost": "it has been given to another worker; its result is thrown away",
}


def _moment_s(held: Held) -> float:
    return held.beat_s if held.ends_s is None else min(held.beat_s, held.ends_s)
