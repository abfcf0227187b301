"""Many calls at the same moment become one statement: what waits while a batch is under way is the next batch.

Nobody waits for others to come: a call that is alone goes at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

# Enough to halve the cost of a row; few enough that nobody waits long for the rows of others.
BATCH_MAX = 256
# One batch at a time makes the next one larger: measured with 64 connections, a third more PUTs a second than two at a
# time. Only behind one that takes longer than this (it waits for a lock) do others go on beside it.
STALLED_S = 0.05
AT_ONCE_MAX = 4
# In which who lingers looks whether others still come.
LINGER_STEPS = 5


class Gather(Generic[A, R]):
    """Calls ``act`` with what has been asked meanwhile; its results belong to the questions in their order.

    A result that is an error is raised where it was asked for; an error of the whole batch is everybody's in it.
    A caller that is cancelled does not end the batch. With ``linger_s`` a batch waits for others as long as they keep
    coming, and no longer than that: where calls come in answer to ours, as those of workers do, a batch at once would
    always be a batch of few.
    """

    def __init__(
        self, act: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]], linger_s: float = 0
    ) -> None:
        self._act = act
        self._linger_s = linger_s
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._running = 0
        self._begun_at = 0.0

    async def ask(self, question: A) -> R:
        return await self.put(question)

    def put(self, question: A) -> asyncio.Future[R]:
        """What will be the answer; for callers with several questions, which go together."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._may_begin():
            self._running += 1
            self._begun_at = asyncio.get_running_loop().time()
            runner = asyncio.create_task(self._run())
            self._runners.add(runner)  # the loop keeps no reference of its own
            runner.add_done_callback(self._runners.discard)
        return future

    def _may_begin(self) -> bool:
        if self._running == 0:
            return True
        stalled = asyncio.get_running_loop().time() - self._begun_at > STALLED_S
        return stalled and self._running < AT_ONCE_MAX

    async def _run(self) -> None:
        while self._waiting:
            await self._linger()
            self._begun_at = asyncio.get_running_loop().time()
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            questions, futures = zip(*batch, strict=True)
            try:
                results: Sequence[R | Exception] = await self._act(questions)
            except Exception as error:
                results = [error] * len(futures)
            for future, result in zip(futures, results, strict=True):
                _settle(future, result)
        # Not by the task's end, which comes a moment later: who asks in between would find nobody to run.
        self._running -= 1


    async def _linger(self) -> None:
        step_s, waiting = self._linger_s / LINGER_STEPS, 0
        for _ in range(LINGER_STEPS if self._linger_s else 0):
            if len(self._waiting) == waiting:
                return
            waiting = len(self._waiting)
            await asyncio.sleep(step_s)


def _settle(future: asyncio.Future[R], result: R | Exception) -> None:
    """Unless its caller has gone."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
