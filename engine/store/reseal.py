"""Sealing again, with the key that is first now, what older keys have sealed: while the service runs, in small steps.

Each step is a transaction of its own that changes only what is still as it was read, so it can be stopped at any
moment, run again, and run twice at the same time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from engine.keys import Keys
from engine.store.connection import Row
from engine.store.sealed import open_definition, seal_definition
from engine.store.service_key import adopt_keys
from engine.store.shard import Shard
from engine.store.statements import Value
from engine.store.tenants import open_secret, seal_secret

# A definition is some 2 KB, and 256 KB at most with its body.
JOBS_PER_STEP = 50
SECRETS_PER_STEP = 500

Told = Callable[[int], None]
"""Is told after each step how much has been sealed again so far."""


async def reseal(shards: Sequence[Shard], told: Told = lambda resealed: None) -> int:
    """Seal everything with the current key; returns how much was sealed with others. The older keys are needed no
    longer once this has returned; answers to calls with an Idempotency-Key that show a secret are, for a day."""
    first = shards[0]
    await adopt_keys(first)
    key_id = first.keys.current_id
    resealed = await _reseal_signing_secrets(first, key_id)
    told(resealed)
    for shard in shards:
        for (partition_id,) in (await shard.execute("placed_partitions")).rows:
            async for count in _steps(shard, partition_id, key_id):
                resealed += count
                told(resealed)
    await first.execute("delete_other_secret_keys", {"key_id": key_id})
    return resealed


async def _steps(shard: Shard, partition_id: int, key_id: str) -> AsyncIterator[int]:
    """A partition's versions in the order of their key, a page of jobs at a time; how many each page had."""
    after_id = 0
    while True:
        values: dict[str, Value] = {"partition_id": partition_id, "after_id": after_id, "rows_max": JOBS_PER_STEP}
        last_id = (await shard.execute("last_job_of_page", values)).rows[0][0]
        if last_id is None:
            return
        page: dict[str, Value] = {
            "partition_id": partition_id,
            "after_id": after_id,
            "last_id": last_id,
            "key_id": key_id,
        }
        rows = (await shard.execute("versions_of_other_keys", page)).rows
        if rows:
            yield await _reseal_versions(shard, rows)
        after_id = int(last_id)


async def _reseal_versions(shard: Shard, rows: Sequence[Row]) -> int:
    new = []
    for partition_id, job_id, version, was, stored in rows:
        plain = open_definition(bytes(stored), job_id, shard.keys)
        sealed = seal_definition(plain, job_id, shard.keys)
        if sealed.key_id is not None:  # else it is damaged, and stays as it is
            new.append((partition_id, job_id, version, was, sealed.key_id, sealed.definition))
    async with shard.connection() as connection:
        return await connection.execute_rows("reseal_versions", sorted(new), bytes_max=shard.packet_bytes_max)


async def _reseal_signing_secrets(first: Shard, key_id: str) -> int:
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
        new = [(row[0], row[1], row[2], _resealed(first.keys, row[0], bytes(row[2]))) for row in rows]
        async with first.connection() as connection:
            resealed += await connection.execute_rows(
                "reseal_signing_secrets", new, bytes_max=first.packet_bytes_max
            )
        after = rows[-1][0], rows[-1][1]


def _resealed(keys: Keys, tenant_id: int, stored: bytes) -> bytes:
    return seal_secret(keys, tenant_id, open_secret(keys, tenant_id, stored))
