"""One tenant's calls wait for its own lane, never for another's."""

from __future__ import annotations

import asyncio

from api.limits import Lanes


def test_p6_a_tenants_flood_waits_in_its_own_lane_in_order_and_leaves_nothing_behind() -> None:
    async def body() -> None:
        lanes, inside, most, done = Lanes(2), 0, 0, []
        may_end = asyncio.Event()

        async def call(number: int) -> None:
            nonlocal inside, most
            async with lanes.enter(1):
                inside += 1
                most = max(most, inside)
                await may_end.wait()
                inside -= 1
                done.append(number)

        flood = [asyncio.create_task(call(number)) for number in range(10)]
        await asyncio.sleep(0)
        async with lanes.enter(2):
            assert (inside, len(lanes)) == (2, 2), "the other tenant is inside at once"
        flood[9].cancel()
        may_end.set()
        await asyncio.gather(*flood, return_exceptions=True)
        assert (most, done, len(lanes)) == (2, list(range(9)), 0)

    asyncio.run(body())
