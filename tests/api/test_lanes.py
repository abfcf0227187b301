"""One tenant's calls wait for its own lane, never for another's."""

from __future__ import annotations

import asyncio

from api.limits import CALLS_LATELY_MS, Lanes
from tests.support.clock import SettableClock


class Flood:
    """Many calls of one tenant at once, which end when they are told to."""

    def __init__(self, lanes: Lanes, tenant_id: int, calls: int) -> None:
        self.inside, self.most = 0, 0
        self.done: list[int] = []
        self.may_end = asyncio.Event()
        self.calls = [asyncio.create_task(self._call(lanes, tenant_id, number)) for number in range(calls)]

    async def _call(self, lanes: Lanes, tenant_id: int, number: int) -> None:
        async with lanes.enter(tenant_id):
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.may_end.wait()
            self.inside -= 1
            self.done.append(number)

    async def end(self) -> None:
        self.may_end.set()
        await asyncio.gather(*self.calls, return_exceptions=True)


def test_p6_a_tenants_flood_waits_in_its_own_lane_in_order_and_leaves_nothing_behind() -> None:
    async def body() -> None:
        clock = SettableClock(0)
        lanes = Lanes(clock, 2)
        flood = Flood(lanes, 1, 10)
        await asyncio.sleep(0)
        async with lanes.enter(2):
            assert (flood.inside, len(lanes)) == (2, 2), "the other tenant is inside at once"
        flood.calls[9].cancel()
        flood.calls[4].cancel()
        await flood.end()
        assert (flood.most, flood.done) == (2, [0, 1, 2, 3, 5, 6, 7, 8])
        clock.advance(CALLS_LATELY_MS + 1)
        async with lanes.enter(3):
            assert len(lanes) == 1, "who calls no more is forgotten"

    asyncio.run(body())


def test_p6_beside_others_a_tenant_has_few_calls_at_once_and_alone_many() -> None:
    async def body() -> None:
        clock = SettableClock(0)
        lanes = Lanes(clock, 6, 2)
        alone = Flood(lanes, 1, 8)
        await asyncio.sleep(0)
        assert alone.inside == 6
        async with lanes.enter(2):
            pass
        await alone.end()
        beside = Flood(lanes, 1, 8)
        await asyncio.sleep(0)
        assert beside.inside == 2, "the other one has called a moment ago"
        await beside.end()
        clock.advance(CALLS_LATELY_MS + 1)
        again = Flood(lanes, 1, 8)
        await asyncio.sleep(0)
        assert again.inside == 6
        await again.end()
        assert sorted(again.done) == list(range(8))

    asyncio.run(body())


def test_p6_while_anothers_call_is_carried_out_a_tenant_has_fewer_still_and_goes_on_after_it() -> None:
    async def body() -> None:
        lanes = Lanes(SettableClock(0), 6, 4, 1)
        flood = Flood(lanes, 1, 20)
        await asyncio.sleep(0)
        async with lanes.enter(2):
            for _ in range(3):
                flood.may_end.set()
                await asyncio.sleep(0)
            flood.may_end.clear()
            await _until_quiet()
            assert flood.inside == 1, "what was inside has ended, and one goes on"
        await _until_quiet()
        assert flood.inside == 4, "the other one's call is over"
        await flood.end()
        assert flood.done == list(range(20))

    asyncio.run(body())


async def _until_quiet() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_p6_two_floods_share_a_process_and_neither_waits_for_the_others_end() -> None:
    async def body() -> None:
        lanes = Lanes(SettableClock(0), 6, 4, 2)
        one, other = Flood(lanes, 1, 10), Flood(lanes, 2, 10)
        await _until_quiet()
        assert (one.inside, other.inside) == (6, 2), "what was alone when it came ends as it began"
        await other.end()
        assert one.inside == 6
        await one.end()
        assert sorted(one.done + other.done) == sorted([*range(10), *range(10)])

    asyncio.run(body())


def test_p6_a_caller_that_gives_up_as_its_turn_comes_takes_no_place_with_it() -> None:
    async def body() -> None:
        lanes = Lanes(SettableClock(0), 1)
        first = Flood(lanes, 1, 2)
        await asyncio.sleep(0)
        first.may_end.set()
        await first.calls[0]  # the second one's turn has come, and it has not run yet
        first.calls[1].cancel()
        await asyncio.gather(*first.calls, return_exceptions=True)
        async with asyncio.timeout(1), lanes.enter(1):
            pass

    asyncio.run(body())
