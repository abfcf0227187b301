"""Notify: failures, and late or skipped runs, are told to their tenant's ``on_failure`` address.

In the keeper, with a client of its own, so that telling never competes with firing. A notice that is being sent is
this keeper's for a while only: should it die, another one sends it again, under the same ``webhook-id``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import orjson

from engine.events import Events
from engine.model import NoticeKind
from engine.outbound.client import HttpClient
from engine.outbound.exchange import Outcome, Request
from engine.outbound.head import fixed_head, run_head
from engine.outbound.sign import signature
from engine.outbound.target import Guard
from engine.rows import RunRow
from engine.rules.brakes import InForce
from engine.rules.notices import TYPES, next_try_ms
from engine.rules.retry import succeeded
from engine.rules.shown import show_range, show_run
from engine.rules.target_text import Refusal
from engine.rules.timestamps import format_time
from engine.stages.versions import CallPlan, Versions
from engine.store.connection import Connection
from engine.store.lists import SkipRow
from engine.store.shard import Shard
from engine.store.statements import time_bounds
from engine.store.tenants import Tenant, Tenants

NOTICES_PER_ROUND = 100
TIMEOUT_MS = 15_000
# While it is sent a notice is left alone by others for this long.
TAKEN_MS = 60_000


class Notice(NamedTuple):
    """A row of ``lock_due_notices``; ``tries`` counts this one."""

    partition_id: int
    job_id: int
    kind: int
    about_at_ms: int
    run_at_ms: int
    tenant_id: int
    version: int
    merged: int
    tries: int
    written_at_ms: int

    @property
    def run_key(self) -> tuple[int, int, int]:
        return self.partition_id, self.run_at_ms, self.job_id

    @property
    def fence(self) -> tuple[int, int, int, int, int]:
        return self.partition_id, self.job_id, self.kind, self.about_at_ms, self.tries


class Found(NamedTuple):
    """What a notice is about, as it stands now: a run, or a range of skipped times and the run of its last one."""

    name: str
    run: RunRow
    skip: SkipRow | None = None


RunPlace = tuple[int, int, int]


class Notify:
    """Sends the notices of one shard."""

    def __init__(
        self,
        shard: Shard,
        client: HttpClient,
        guard: Guard,
        tenants: Tenants,
        brakes: Callable[[], InForce],
        versions: Versions,
        events: Events,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._shard = shard
        self._client = client
        self._guard = guard
        self._tenants = tenants
        self._brakes = brakes
        self._versions = versions
        self._events = events
        self._draw = draw

    async def run_once(self, now_ms: int) -> bool:
        """Send what is due; True if there may be more. While everything is stopped, notices wait."""
        if self._brakes().everything:
            return False
        notices = await self._take(now_ms)
        if not notices:
            return False
        runs, calls = await self._read(notices)
        told = await asyncio.gather(
            *(self._tell(notice, runs.get(notice.run_key), calls[_version_key(notice)], now_ms) for notice in notices)
        )
        await self._settle(notices, told, now_ms)
        return len(notices) == NOTICES_PER_ROUND

    async def _take(self, now_ms: int) -> list[Notice]:
        if not (await self._shard.execute("any_due_notice", {"now_ms": now_ms})).rows:
            return []

        async def transaction() -> list[Notice]:
            async with self._shard.transaction() as connection:
                answer = await connection.execute("lock_due_notices", {"now_ms": now_ms, "rows_max": NOTICES_PER_ROUND})
                notices = [Notice(*row)._replace(tries=row[8] + 1) for row in answer.rows]
                await self._write(connection, "take_notices", [(*n.fence, now_ms + TAKEN_MS) for n in notices])
                return notices

        return await self._shard.retrying(transaction)

    async def _read(
        self, notices: Sequence[Notice]
    ) -> tuple[dict[RunPlace, Found], dict[RunPlace, CallPlan | Exception]]:
        keys = sorted({notice.run_key for notice in notices})
        bytes_max = self._shard.packet_bytes_max
        async with self._shard.connection() as connection:
            rows = await connection.fetch_rows("noticed_runs", keys, time_bounds(keys), bytes_max=bytes_max)
            found = {(row[0], row[2], row[3]): Found(row[1], RunRow(*row[2:])) for row in rows}
            ranges = [key for key in keys if key not in found]
            if ranges:
                rows = await connection.fetch_rows("noticed_skips", ranges, bytes_max=bytes_max)
                skips = {(row[0], row[2], row[4]): (row[1], SkipRow(*row[2:])) for row in rows}
                found |= {key: Found(name, skip.run, skip) for key, (name, skip) in skips.items()}
            calls = await self._versions.load(connection, map(_version_key, notices), bytes_max)
        return found, calls

    async def _tell(
        self, notice: Notice, found: Found | None, call: CallPlan | Exception, now_ms: int
    ) -> bool:
        """True if the tenant was told, or has no address to be told at. Where a brake is pulled, or nothing can be
        signed, it is told later."""
        tenant = await self._tenants.tenants.get(notice.tenant_id)
        own_url = call.definition.on_failure_url if isinstance(call, CallPlan) else None
        url = own_url or (tenant.on_failure_url if tenant else None)
        if tenant is None or found is None or url is None:
            return True
        target = self._guard.judge_url(url)
        if isinstance(target, Refusal):
            self._events.emit("notice.refused", kind=NoticeKind(notice.kind).name.lower(), detail=target.detail)
            return True
        if tenant.sealed or self._brakes().stops(tenant.tenant_id) or self._brakes().blocks(target.origin):
            return False
        body = orjson.dumps(_document(notice, found, now_ms))
        fixed = fixed_head(target, "POST", _HEADERS, body, self._versions.user_agent)
        head = self._head(notice, tenant, fixed, body, now_ms)
        outcome = await self._send(Request(tenant.tenant_id, target.origin, "POST", head, body, TIMEOUT_MS))
        return succeeded(outcome.kind, outcome.status)

    def _head(self, notice: Notice, tenant: Tenant, fixed: bytes, body: bytes, now_ms: int) -> bytes:
        kind = NoticeKind(notice.kind).name.lower()
        key = f"notice_{kind}_{notice.job_id:016x}{notice.about_at_ms:012x}".encode()
        signed = signature(tenant.signing_keys, key, now_ms // 1000, body)
        return run_head(fixed, key, notice.run_at_ms, notice.tries, now_ms // 1000, signed)

    async def _send(self, request: Request) -> Outcome:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._client.send(request, lambda _, outcome: done.set_result(outcome), object())
        return await done

    async def _settle(self, notices: Sequence[Notice], told: Sequence[bool], now_ms: int) -> None:
        ended, postponed = [], []
        for notice, done in zip(notices, told, strict=True):
            again_ms = None if done else next_try_ms(notice.tries, notice.written_at_ms, now_ms, self._draw)
            if again_ms is None:
                ended.append(notice.fence)
                if not done:
                    self._events.emit("notice.given_up", kind=NoticeKind(notice.kind).name.lower())
            else:
                postponed.append((*notice.fence, again_ms))
        async with self._shard.connection() as connection:
            await self._write(connection, "end_notices", ended)
            await self._write(connection, "postpone_notices", postponed)
        self._events.emit("notice.told", told=sum(told), postponed=len(postponed))

    async def _write(self, connection: Connection, name: str, rows: Sequence[tuple[int, ...]]) -> None:
        if rows:
            await connection.execute_rows(name, sorted(rows), bytes_max=self._shard.packet_bytes_max)


_HEADERS = [("Content-Type", "application/json")]


def _version_key(notice: Notice) -> tuple[int, int, int]:
    return notice.partition_id, notice.job_id, notice.version


def _document(notice: Notice, found: Found, now_ms: int) -> dict[str, object]:
    """The body; ``count`` says how many runs of this kind the job had in that minute."""
    data = show_run(found.name, found.run, now_ms)
    if found.skip is not None:
        data |= show_range(found.skip.from_at_ms, found.skip.skipped)
    document: dict[str, object] = {
        "type": TYPES[NoticeKind(notice.kind)],
        "timestamp": format_time(notice.written_at_ms),
        "data": data,
    }
    return document | ({"count": notice.merged} if notice.kind != NoticeKind.FAILED else {})
