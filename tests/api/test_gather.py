"""Gathering: questions of one moment are one batch, each gets its own answer, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.gather import BATCH_MAX, STALLED_S, Gather

DEADLINE_S = 10


class Store:
    """Doubles numbers, at its own pace; refuses negative ones, and breaks at zero."""

    def __init__(self) -> None:
        self.batches: list[Sequence[int]] = []
        self.open = 0
        self.open_max = 0

    async def double(self, numbers: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(numbers)
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        if 0 in numbers:
            raise ZeroDivisionError
        return [number * 2 if number > 0 else ValueError(number) for number in numbers]


async def ended(*tasks: asyncio.Task[int]) -> list[int | BaseException]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


def test_questions_at_the_same_moment_are_few_batches_and_each_gets_its_answer() -> None:
    async def body() -> None:
        store = Store()
        gather = Gather(store.double)
        tasks = [asyncio.create_task(gather.ask(n)) for n in range(1, 301)]
        assert await ended(*tasks) == [2 * n for n in range(1, 301)]
        assert len(store.batches) <= 300 // BATCH_MAX + 2
        assert max(map(len, store.batches)) <= BATCH_MAX
        assert store.open_max == 1

    asyncio.run(body())


def test_a_question_asked_at_any_turn_of_the_loop_is_answered() -> None:
    async def body() -> None:
        gather = Gather(Store().double)
        tasks = []
        for turns in range(200):
            tasks.append(asyncio.create_task(gather.ask(turns + 1)))
            for _ in range(turns % 7):
                await asyncio.sleep(0)
        assert await ended(*tasks) == [2 * (n + 1) for n in range(200)]

    asyncio.run(body())


def test_an_error_belongs_to_its_question_and_one_of_the_batch_to_all_of_it() -> None:
    async def body() -> None:
        gather = Gather(Store().double)
        one, bad = asyncio.create_task(gather.ask(1)), asyncio.create_task(gather.ask(-1))
        answers = await ended(one, bad)
        assert answers[0] == 2
        assert isinstance(answers[1], ValueError)
        broken = await ended(*(asyncio.create_task(gather.ask(n)) for n in (0, 0)))
        assert all(isinstance(error, ZeroDivisionError) for error in broken)
        assert await gather.ask(3) == 6

    asyncio.run(body())


def test_a_caller_that_goes_away_does_not_end_the_batch_of_others() -> None:
    async def body() -> None:
        store = Store()
        gather = Gather(store.double)
        gone, stays = asyncio.create_task(gather.ask(1)), asyncio.create_task(gather.ask(2))
        await asyncio.sleep(0)
        gone.cancel()
        answers = await ended(gone, stays)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert answers[1] == 4
        assert await gather.ask(5) == 10

    asyncio.run(body())


def test_a_batch_that_is_stuck_holds_up_no_other() -> None:
    async def body() -> None:
        stuck = asyncio.Event()

        async def act(numbers: Sequence[int]) -> Sequence[int | Exception]:
            if 0 in numbers:
                await stuck.wait()
            return numbers

        gather: Gather[int, int] = Gather(act)
        held = asyncio.create_task(gather.ask(0))
        answered: set[asyncio.Task[int]] = set()
        async with asyncio.timeout(DEADLINE_S):
            while not answered:
                answered, _ = await asyncio.wait([asyncio.create_task(gather.ask(1))], timeout=2 * STALLED_S)
        assert not held.done()
        stuck.set()
        assert await ended(held) == [0]

    asyncio.run(body())


@pytest.mark.parametrize("asked", [0, 1])
def test_nothing_runs_while_nothing_is_asked(asked: int) -> None:
    async def body() -> None:
        store = Store()
        gather = Gather(store.double)
        for n in range(asked):
            await gather.ask(n + 1)
        await asyncio.sleep(0)
        assert len(store.batches) == asked
        assert store.open == 0

    asyncio.run(body())
