"""Every connect of the client is counted: whatever a name resolves to and whatever a URL says, none goes astray."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.model import OutcomeKind
from engine.outbound.target import Guard
from engine.rules.target_text import Refusal
from tests.outbound.test_target import FORBIDDEN, NO_ADDRESSES, PUBLIC, edges
from tests.rules.test_target_text import AMBIGUOUS, refused_cases
from tests.support.peer import Names, answering, outbound, serving

ADDRESSES = [*FORBIDDEN, *edges(), *NO_ADDRESSES]
URLS = [*(url for _, url in refused_cases()), *AMBIGUOUS]
# So many tricks are known.
CASES_MIN = 300


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    return run


class CountingLoop:
    """An event loop that notes where it is told to connect, and goes nowhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connected: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def sock_connect(self, sock: object, address: tuple[str, int]) -> None:
        self.connected.append(address)
        raise ConnectionRefusedError


class NotingLoop(CountingLoop):
    """The same, and goes there."""

    async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:  # type: ignore[override]
        self.connected.append(address)
        await self._loop.sock_connect(sock, address)


@in_loop
async def test_p9_no_connect_is_made_to_any_forbidden_address() -> None:
    guard, names = Guard(), Names()
    missed = []
    async with outbound(names=names, guard=guard) as out:
        counting = CountingLoop(asyncio.get_running_loop())
        out.client.opener._loop = counting  # type: ignore[assignment]
        for address in filter(None, ADDRESSES):
            # Beside a public one as well: then the public one is not dialled either.
            for answer in (address, f"{address} 8.8.8.8", f"8.8.8.8 {address}"):
                names.answers = [answer]
                outcome = await out.call("https://example.com/")
                missed += [] if outcome.kind is OutcomeKind.TARGET_REFUSED else [(answer, outcome)]
    judged = [url for url in URLS if not isinstance(guard.judge_url(url), Refusal)]
    assert (counting.connected, missed, judged) == ([], [], [])
    assert len(ADDRESSES) + len(URLS) >= CASES_MIN


@in_loop
async def test_a_public_address_is_connected_to_so_the_counter_counts() -> None:
    for address in PUBLIC[:5]:
        async with outbound(names=Names(address), guard=Guard()) as out:
            counting = CountingLoop(asyncio.get_running_loop())
            out.client.opener._loop = counting  # type: ignore[assignment]
            await out.call("https://example.com/")
            assert set(counting.connected) == {(address, 443)}


@in_loop
async def test_p9_a_redirect_is_an_answer_and_leads_nowhere() -> None:
    async with serving(answering(b"")) as elsewhere:
        forbidden = ("http://169.254.169.254/latest", "https://10.0.0.1/", "//[::1]/", "/again")
        for status in (301, 302, 303, 307, 308):
            for location in (*forbidden, f"http://127.0.0.1:{elsewhere.port}/"):
                head = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
                async with serving(answering(head.encode())) as peer, outbound() as out:
                    noting = NotingLoop(asyncio.get_running_loop())
                    out.client.opener._loop = noting  # type: ignore[assignment]
                    outcome = await out.call(f"http://127.0.0.1:{peer.port}/")
                    assert (outcome.kind, outcome.status) == (OutcomeKind.ANSWERED, status)
                    assert noting.connected == [("127.0.0.1", peer.port)]
        assert elsewhere.visits == 0


def test_p9_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        async with serving(answering(ok)) as proxy, serving(answering(ok)) as peer:
            for name in ("http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
                monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")
            async with outbound() as out:
                assert (await out.call(f"http://127.0.0.1:{peer.port}/")).status == 200
            assert (proxy.visits, peer.visits) == (0, 1)

    asyncio.run(body())
