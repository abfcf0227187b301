"""Signing secrets: what receivers check our calls with. Two are valid while one takes over from the other."""

from __future__ import annotations

from functools import partial
from typing import Any

from api.fields import Duration
from api.idempotency import once
from api.records import Record, Slot
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from engine.rules.timestamps import format_time
from engine.store.tenants import Secret, rotate_secret, secrets_of, show_secret

OVERLAP_MS = 24 * 3_600_000

ROTATE = Record(
    "RotateRequest",
    {
        "keep_old_for": Slot(
            Duration(0, 30 * OVERLAP_MS, "24h"), "How long the old secrets sign beside the new one.", default="24h"
        )
    },
    lambda given, at, reading: given,
)


async def list_secrets(call: Call) -> Answer:
    """GET /v1/signing-secrets"""
    call.query(EMPTY_QUERY)
    return _answer(await secrets_of(call.service.placement.first, call.tenant_id))


async def rotate(call: Call) -> Answer:
    """POST /v1/signing-secrets:rotate"""
    given: dict[str, Any] = await call.fields(ROTATE)
    first = call.service.placement.first
    act = partial(rotate_secret, first, call.tenant_id, given.get("keep_old_for", OVERLAP_MS))
    answer = await once(call, first, act, _answer, secret=True)
    assert answer is not None  # noqa: S101 - there are always secrets
    return answer


def _answer(secrets: list[Secret]) -> Answer:
    return Answer({"signing_secrets": [_show(secret) for secret in secrets]})


def _show(secret: Secret) -> dict[str, Any]:
    retires_ms = secret.retires_at_ms
    return {
        "secret": show_secret(secret.secret),
        "created_at": format_time(secret.created_at_ms),
        "retires_at": None if retires_ms is None else format_time(retires_ms),
    }
