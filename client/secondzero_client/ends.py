"""Results on their way to the service: what ends at the same moment is told in one call.

A call of its own costs the service and the worker many times what one more result in a call costs. What is not answered
well in the shared call is told again by itself, with all the patience of a call of its own: so the service's word on a
result, and when it is given up, are the same as for ``complete_work``, which may be said again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum
from typing import Any

from secondzero_client import calls
from secondzero_client.client import Client

# In one call: so many results of 64 KB fit into its body of 2 MB.
RESULTS_MAX = 30
# While other runs are under way, a result waits so long for theirs.
GATHER_S = 0.0005
TIMEOUT_S = 10.0


class Word(Enum):
    """What becomes of a result that waits."""

    TAKEN = "taken"
    ALONE = "alone"  # it is to be told by itself
    LEAD = "lead"  # its thread is to tell what waits, itself included


class _Ended:
    def __init__(self, token: str, result: Any) -> None:
        self.token = token
        self.result = result
        self.word: Future[Word] = Future()


class Ends:
    """One of the threads that have a result tells those of all; what ends meanwhile goes with the next call.

    ``under_way`` says how many runs the worker has.
    """

    def __init__(self, client: Client, under_way: Callable[[], int]) -> None:
        self._client = client
        self._under_way = under_way
        self._lock = threading.Lock()
        self._waiting: list[_Ended] = []
        self._led = False

    def complete(self, token: str, result: Any) -> None:
        """Returns once the service has it; raises as ``complete_work`` does."""
        if self._under_way() < 2 or self._with_others(token, result) is not Word.TAKEN:
            self._client.complete_work(token, result)

    def _with_others(self, token: str, result: Any) -> Word:
        ended = _Ended(token, result)
        with self._lock:
            self._waiting.append(ended)
            leads, self._led = not self._led, True
        if leads:
            time.sleep(GATHER_S)
            return self._lead()
        word = ended.word.result()
        return self._lead() if word is Word.LEAD else word

    def _lead(self) -> Word:
        """Tell what waits, the leader's own result first, and leave the lead to the next; the word on its own."""
        with self._lock:
            batch, self._waiting = self._waiting[:RESULTS_MAX], self._waiting[RESULTS_MAX:]
        words = self._tell(batch) if len(batch) > 1 else [Word.ALONE]
        with self._lock:
            if words is None:  # what waits need not wait for as long again
                batch, self._waiting = batch + self._waiting, []
            self._led = bool(self._waiting)
            if self._waiting:
                self._waiting[0].word.set_result(Word.LEAD)
        words = words or [Word.ALONE] * len(batch)
        for ended, word in zip(batch[1:], words[1:], strict=True):
            ended.word.set_result(word)
        return words[0]

    def _tell(self, batch: Sequence[_Ended]) -> list[Word] | None:
        """None where the call itself fails: each is told by itself then, and its thread hears what is wrong with it."""
        request = calls.complete_works([(ended.token, ended.result) for ended in batch])
        try:
            results = self._client.send(replace(request, timeout_s=TIMEOUT_S, total_s=0))["results"]
        except Exception:
            return None
        return [Word.TAKEN if result["status"] == 200 else Word.ALONE for result in results]
