"""Whether this process lives, and whether it can serve: for probes, without a key."""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.responses import JSON
from api.service import Service
from engine.errors import StoreUnavailable
from engine.store.shard import Shard

PROBE_TIMEOUT_MS = 1_000


async def livez(service: Service, request: Request) -> Response:
    """200 as long as the event loop turns."""
    return Response(b'{"live":true}', media_type=JSON)


async def readyz(service: Service, request: Request) -> Response:
    """200 if every shard answers; else 503 with those that do not. Jobs on the others are served all the same."""
    shards = service.placement.shards
    problems = await asyncio.gather(*(_probe(shard) for shard in shards))
    away = [
        {"shard": shard.index, "problem": problem} for shard, problem in zip(shards, problems, strict=True) if problem
    ]
    ready = not away and service.placement.complete
    body = orjson.dumps({"ready": ready, "shards": len(shards), "away": away})
    return Response(body, 200 if ready else 503, {} if ready else {"Retry-After": "1"}, media_type=JSON)


async def _probe(shard: Shard) -> str | None:
    try:
        await shard.execute("shard_now", timeout_ms=PROBE_TIMEOUT_MS)
    except StoreUnavailable:
        return "does not answer"
    return None
