"""Operators' brakes over HTTP, as `secondzero pause`, `resume`, `block`, `unblock` and `brakes`.

Who did it is the name of the key that was used.
"""

from __future__ import annotations

from typing import Any

from api.errors import not_found
from api.fields import Reading, Text
from api.records import Record, Slot
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from engine.errors import OperatorError
from engine.rules.brakes import BrakeKind
from engine.rules.target_text import Refusal, read_target
from engine.rules.timestamps import format_time
from engine.store.brakes import NOTE_CHARS_MAX, Brake, brakes_used, pause_tenant, pull, release, resume_tenant
from engine.store.shard import Shard

USES_MAX = 100


def _given(given: Any, at: str, reading: Reading) -> Any:
    return given


class _Origin(Text):
    """Scheme, host and port in their one spelling; a path is refused, since a whole origin is blocked."""

    def read(self, value: Any, at: str, reading: Reading) -> Any:
        text = super().read(value, at, reading)
        if text is None:
            return None
        target = read_target(text)
        if isinstance(target, Refusal):
            reading.fault(at, target.detail, "https://example.com")
        elif target.path != "/":
            reading.fault(at, "only scheme, host and port", str(target.origin))
        else:
            return str(target.origin)
        return None


_NOTE = Slot(Text(NOTE_CHARS_MAX, example="restored from backup"), "Why, for the record.", default="")
_ORIGIN = Slot(_Origin(8_192, example="https://example.com"), required=True)

PULL = Record("PullBrake", {"note": _NOTE}, _given)
BLOCK = Record("BlockOrigin", {"origin": _ORIGIN, "note": _NOTE}, _given)
UNBLOCK = Record("UnblockOrigin", {"origin": _ORIGIN}, _given)


async def list_brakes(call: Call) -> Answer:
    """GET /admin/v1/brakes"""
    call.query(EMPTY_QUERY)
    return Answer({"brakes": [_show(brake) for brake in await brakes_used(_first(call), USES_MAX)]})


async def pause_all(call: Call) -> Answer:
    """POST /admin/v1/brakes:pause"""
    given = await call.fields(PULL)
    return Answer(_show(await pull(_first(call), BrakeKind.ALL, "", call.key_name, given.get("note", ""))))


async def resume_all(call: Call) -> Answer:
    """POST /admin/v1/brakes:resume"""
    return _released(call, await release(_first(call), BrakeKind.ALL, "", call.key_name))


async def block(call: Call) -> Answer:
    """POST /admin/v1/brakes:block"""
    given = await call.fields(BLOCK)
    brake = await pull(_first(call), BrakeKind.ORIGIN, given["origin"], call.key_name, given.get("note", ""))
    return Answer(_show(brake))


async def unblock(call: Call) -> Answer:
    """POST /admin/v1/brakes:unblock"""
    given = await call.fields(UNBLOCK)
    return _released(call, await release(_first(call), BrakeKind.ORIGIN, given["origin"], call.key_name))


async def pause_one(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}:pause"""
    given = await call.fields(PULL)
    shards, note = call.service.placement.shards, given.get("note", "")
    try:
        brake, jobs = await pause_tenant(shards, call.path["tenant"], call.key_name, note, call.service.windows)
    except OperatorError as error:
        raise not_found("tenant") from error
    return Answer(_show(brake) | {"jobs_paused": jobs})


async def resume_one(call: Call) -> Answer:
    """POST /admin/v1/tenants/{tenant}:resume"""
    shards = call.service.placement.shards
    try:
        released, jobs = await resume_tenant(shards, call.path["tenant"], call.key_name, call.service.windows)
    except OperatorError as error:
        raise not_found("tenant") from error
    return _released(call, released, jobs_resumed=jobs)


def _first(call: Call) -> Shard:
    return call.service.placement.first


def _released(call: Call, was_in_force: bool, **more: int) -> Answer:
    return Answer({"was_in_force": was_in_force, "released_by": call.key_name, **more})


def _show(brake: Brake) -> dict[str, Any]:
    return {
        "stops": BrakeKind(brake.kind).name.lower(),
        "what": brake.what or None,
        "in_force": brake.released_at_ms is None,
        "pulled_at": format_time(brake.pulled_at_ms),
        "pulled_by": brake.pulled_by,
        "note": brake.note or None,
        "released_at": None if brake.released_at_ms is None else format_time(brake.released_at_ms),
        "released_by": brake.released_by,
    }
