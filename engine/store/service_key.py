"""The service's own key, and the record of which keys have sealed something: both on the first shard.

A key that was lost, or that another host does not have, is told at the start instead of at the first secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

from engine.errors import OperatorError
from engine.keys import Keys, Sealed
from engine.store.connection import Duplicate, Row
from engine.store.shard import Shard
from engine.store.statements import Value

SERVICE_KEY_BYTES = 32
_ABOUT = b"service key"


async def adopt_keys(first: Shard) -> bytes:
    """Put the key that seals now on record, if it is not there, and return the service's own key.

    OperatorError where a key is missing that has sealed something: one line that names it.
    """
    keys = first.keys
    while True:
        rows = (await first.execute("secret_keys")).rows
        service_key = _service_key(rows, keys) if rows else secrets.token_bytes(SERVICE_KEY_BYTES)
        sealed = keys.seal(service_key, _ABOUT)
        if any(row[0] == sealed.key_id for row in rows):
            return service_key
        with suppress(Duplicate):  # another process was first: what it has written is what counts
            await _register(first, sealed, rows[-1][3] + 1 if rows else 1)
            return service_key


async def secret_keys(first: Shard) -> list[tuple[str, int]]:
    """The keys that have sealed something, with the time of their first use in milliseconds."""
    return [(row[0], row[1]) for row in (await first.execute("secret_keys")).rows]


async def check_keys(first: Shard) -> None:
    """OperatorError where a key is missing that has sealed something."""
    rows = (await first.execute("secret_keys")).rows
    if rows:
        _service_key(rows, first.keys)


async def _register(first: Shard, sealed: Sealed, number: int) -> None:
    values: dict[str, Value] = {
        "number": number,
        "key_id": sealed.key_id,
        "now_ms": await first.now_ms(),
        "service_key": sealed.encode(),
    }
    await first.execute("insert_secret_key", values)


def _service_key(rows: Sequence[Row], keys: Keys) -> bytes:
    here = keys.ids
    missing = [row[0] for row in rows if row[0] not in here]
    if missing:
        raise OperatorError(
            f"this fleet's secrets are encrypted with key {', '.join(missing)}, which is not in {keys.source}"
            f" ({', '.join(here) or 'there is none'}): put it back there, behind the first one"
        )
    sealed = Sealed.parse(bytes(rows[-1][2]))
    try:
        return keys.open(sealed, _ABOUT)
    except ValueError as error:
        raise OperatorError(f"key {sealed.key_id} in {keys.source} is not the one that this fleet has used") from error
