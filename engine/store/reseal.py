"""Sealing again, with the key that is first now, what older keys have sealed: while the service runs, in small steps.

Each step is a transaction of its own that changes only what is still as it was read, so it can be stopped at any
moment, run again, and run twice at the same time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from engine.errors import OperatorError
from engine.keys import KeyMissing, Keys
from engine.model import SECRET_MARK
from engine.store.connection import Row
from engine.store.sealed import decode_sealed, seal_definition
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from engine.store.statements import Value
from engine.store.tenants import SECRET_BYTES, open_secret, seal_secret

# A definition is some 2 KB, and 256 KB at most with its body.
JOBS_PER_STEP = 50
SECRETS_PER_STEP = 500

Told = Callable[[int], None]
"""Is told after each step how much has been sealed again so far."""

Unopened = set[str]
"""Why something stays as it is: its key is not here. It holds up nothing else, but then no key may be forgotten. What
is damaged opens with no key, and stays as it is too."""


async def reseal(shards: Sequence[Shard], told: Told = lambda resealed: None) -> int:
    """Seal everything with the current key; returns how much was sealed with others. The older keys are needed no
    longer once this has returned; answers to calls with an Idempotency-Key that show a secret are, for a day.

    OperatorError at the end where a key was missing: all the rest is sealed again, and no key forgotten.
    """
    first = shards[0]
    await adopt_keys(first)
    key_id = first.keys.current_id
    unopened: Unopened = set()
    resealed = await _reseal_signing_secrets(first, key_id, unopened)
    told(resealed)
    for shard in shards:
        for (partition_id,) in (await shard.execute("placed_partitions")).rows:
            async for count in _steps(shard, partition_id, key_id, unopened):
                resealed += count
                told(resealed)
    if unopened:
        raise OperatorError(f"{'; '.join(sorted(unopened))}: all others ({resealed}) are encrypted again")
    await first.execute("delete_other_secret_keys", {"key_id": key_id})
    return resealed


async def seal_plain(shards: Sequence[Shard]) -> int:
    """Seal what stands in the clear, in a fleet that is older than the encryption of secrets; how much it was.

    Nothing may run on it meanwhile. The signing secrets come last: as long as one of them stands in the clear, it goes
    on where it stopped.
    """
    first = shards[0]
    if not await _plain_signing_secrets(first):
        return 0
    sealed = 0
    for shard in shards:
        for (partition_id,) in (await shard.execute("placed_partitions")).rows:
            async for page in _pages(shard, partition_id):
                rows = (await shard.execute("plain_versions", page | {"secret_mark": SECRET_MARK})).rows
                sealed += await _seal_versions(shard, rows) if rows else 0
    while rows := await _plain_signing_secrets(first):
        new = [(row[0], row[1], row[2], seal_secret(first.keys, row[0], bytes(row[2]))) for row in rows]
        async with first.connection() as connection:
            sealed += await connection.execute_rows("reseal_signing_secrets", new, bytes_max=first.packet_bytes_max)
    return sealed


async def _plain_signing_secrets(first: Shard) -> Sequence[Row]:
    values: dict[str, Value] = {"bytes": SECRET_BYTES, "rows_max": SECRETS_PER_STEP}
    return (await first.execute("plain_signing_secrets", values)).rows


async def _seal_versions(shard: Shard, rows: Sequence[Row]) -> int:
    new = []
    for partition_id, job_id, version, plain in rows:
        with suppress(ValueError, LookupError, TypeError):  # what is damaged stays as it is
            sealed = seal_definition(bytes(plain), job_id, shard.keys)
            if sealed.key_id is not None:
                new.append((partition_id, job_id, version, sealed.key_id, sealed.definition))
    if not new:
        return 0
    async with shard.connection() as connection:
        return await connection.execute_rows("seal_versions", sorted(new), bytes_max=shard.packet_bytes_max)


async def _steps(shard: Shard, partition_id: int, key_id: str, unopened: Unopened) -> AsyncIterator[int]:
    """How many versions of a partition each page had."""
    async for page in _pages(shard, partition_id):
        rows = (await shard.execute("versions_of_other_keys", page | {"key_id": key_id})).rows
        if rows:
            yield await _reseal_versions(shard, rows, unopened)


async def _pages(shard: Shard, partition_id: int) -> AsyncIterator[dict[str, Value]]:
    """A partition's versions in the order of their key, a page of jobs at a time."""
    after_id = 0
    while True:
        values: dict[str, Value] = {"partition_id": partition_id, "after_id": after_id, "rows_max": JOBS_PER_STEP}
        last_id = (await shard.execute("last_job_of_page", values)).rows[0][0]
        if last_id is None:
            return
        yield {"partition_id": partition_id, "after_id": after_id, "last_id": int(last_id)}
        after_id = int(last_id)


async def _reseal_versions(shard: Shard, rows: Sequence[Row], unopened: Unopened) -> int:
    new = []
    for partition_id, job_id, version, was, stored in rows:
        try:
            plain = decode_sealed(bytes(stored), job_id, shard.keys).encode()
        except KeyMissing as error:
            unopened.add(str(error))
            continue
        except (ValueError, LookupError, TypeError):
            continue
        sealed = seal_definition(plain, job_id, shard.keys)
        new.append((partition_id, job_id, version, was, sealed.key_id, sealed.definition))
    if not new:
        return 0
    async with shard.connection() as connection:
        return await connection.execute_rows("reseal_versions", sorted(new), bytes_max=shard.packet_bytes_max)


async def _reseal_signing_secrets(first: Shard, key_id: str, unopened: Unopened) -> int:
    resealed, after = 0, (0, 0)
    while True:
        values: dict[str, Value] = {
            "tenant_id": after[0],
            "created_at": after[1],
            "key_id": key_id,
            "rows_max": SECRETS_PER_STEP,
        }
        rows = (await first.execute("signing_secrets_of_other_keys", values)).rows
        if not rows:
            return resealed
        new = []
        for tenant_id, created_at, stored in rows:
            try:
                new.append((tenant_id, created_at, stored, _resealed(first.keys, tenant_id, bytes(stored))))
            except KeyMissing as error:
                unopened.add(str(error))
            except ValueError:
                continue
        if new:
            async with first.connection() as connection:
                resealed += await connection.execute_rows(
                    "reseal_signing_secrets", new, bytes_max=first.packet_bytes_max
                )
        after = rows[-1][0], rows[-1][1]


def _resealed(keys: Keys, tenant_id: int, stored: bytes) -> bytes:
    return seal_secret(keys, tenant_id, open_secret(keys, tenant_id, stored))
