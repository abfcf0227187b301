"""What operators do to tenants and their keys. All of it is on the first shard, but for a tenant's jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from engine.errors import OperatorError
from engine.store.changes import Windows, delete_job
from engine.store.connection import Connection
from engine.store.jobs import jobs_by_key
from engine.store.lists import JobFilter, job_names
from engine.store.shard import Shard
from engine.store.statements import Value
from engine.store.tenants import insert_key, new_api_key

JOBS_PER_PAGE = 500

# A key is named by the beginning of its hash, which tells nothing about it.
KEY_ID_CHARS = 12


class TenantRow(NamedTuple):
    """A tenant as operators see it."""

    tenant_id: int
    name: str
    created_at_ms: int
    disabled_at_ms: int | None
    on_failure_url: str | None


class KeyRow(NamedTuple):
    """A key as operators see it: never itself."""

    key_hash: bytes
    tenant_id: int | None
    name: str
    scope: str
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None
    last_used_at_ms: int | None

    @property
    def key_id(self) -> str:
        return self.key_hash.hex()[:KEY_ID_CHARS]


class NewKey(NamedTuple):
    """A key that was made, shown once."""

    api_key: str
    row: KeyRow


async def list_tenants(first: Shard) -> list[TenantRow]:
    """All tenants, by name."""
    return [TenantRow(*row) for row in (await first.execute("list_tenants")).rows]


async def find_tenant(first: Shard, name: str) -> TenantRow:
    """OperatorError if there is none of this name."""
    rows = (await first.execute("tenant_by_name", {"name": name})).rows
    if not rows:
        raise OperatorError(f"there is no tenant {name}; secondzero tenant list shows those there are")
    return TenantRow(*rows[0])


async def set_disabled(first: Shard, name: str, disabled: bool) -> TenantRow:
    """Disable a tenant (its runs are skipped, its keys refused, within seconds), or enable it again."""
    tenant = await find_tenant(first, name)
    disabled_at_ms = (tenant.disabled_at_ms or await first.now_ms()) if disabled else None
    values = {"tenant_id": tenant.tenant_id, "disabled_at": disabled_at_ms}
    await first.execute("set_tenant_disabled", values)
    return tenant._replace(disabled_at_ms=disabled_at_ms)


async def set_on_failure(first: Shard, name: str, url: str | None) -> None:
    """Where notices go of jobs that name no address of their own."""
    tenant = await find_tenant(first, name)
    await first.execute("set_tenant_on_failure", {"tenant_id": tenant.tenant_id, "on_failure": url})


async def set_limits(first: Shard, name: str, limits: Mapping[str, int | None]) -> None:
    """Limits of a tenant's own; None takes the default again."""
    tenant = await find_tenant(first, name)
    for limit, value in limits.items():
        key: dict[str, Value] = {"tenant_id": tenant.tenant_id, "name": limit}
        if value is None:
            await first.execute("delete_limit", key)
        else:
            await first.execute("set_limit", key | {"value": value})


async def delete_tenant(
    shards: Sequence[Shard], name: str, windows: Windows, told: Callable[[int], None] = lambda jobs: None
) -> int:
    """Disable a tenant, delete its jobs on every shard, then forget its keys, secrets and limits; returns its jobs.

    Its history stays as long as anyone's. Run again it goes on where it stopped.
    """
    first = shards[0]
    tenant = await set_disabled(first, name, disabled=True)
    jobs = 0
    for shard in shards:
        while deleted := await _delete_page(shard, tenant.tenant_id, windows):
            jobs += deleted
            told(jobs)
    async with first.transaction() as connection:
        await _forget(connection, tenant.tenant_id)
    return jobs


async def list_keys(first: Shard, tenant_id: int | None) -> list[KeyRow]:
    """A tenant's keys, or those of operators, the oldest first."""
    rows = (await first.execute("list_keys", {"tenant_id": tenant_id})).rows
    return [KeyRow(bytes(row[0]), *row[1:]) for row in rows]


async def create_key(first: Shard, tenant_id: int | None, name: str, scope: str, expires_in_ms: int | None) -> NewKey:
    """A new key of a tenant, or of operators (None)."""
    api_key = new_api_key()
    async with first.transaction() as connection:
        now_ms = int((await connection.execute("shard_now")).rows[0][0])
        expires_at_ms = None if expires_in_ms is None else now_ms + expires_in_ms
        key_hash = await insert_key(connection, api_key, tenant_id, name, scope, now_ms, expires_at_ms)
    return NewKey(api_key, KeyRow(key_hash, tenant_id, name, scope, now_ms, expires_at_ms, None, None))


async def revoke_key(first: Shard, tenant_id: int | None, key_id: str) -> KeyRow:
    """Revoke a key by the beginning of its id; it is refused within seconds."""
    key = await find_key(first, tenant_id, key_id)
    await first.execute("revoke_key", {"key_hash": key.key_hash, "now_ms": await first.now_ms()})
    return key


async def rotate_key(first: Shard, tenant_id: int | None, key_id: str, keep_old_ms: int) -> NewKey:
    """A new key of the same name and scope; the old one ends after a while."""
    old = await find_key(first, tenant_id, key_id)
    if old.revoked_at_ms is not None:
        raise OperatorError(f"the key {old.key_id} is revoked: create a new one instead")
    new = await create_key(first, tenant_id, old.name, old.scope, None)
    await first.execute("expire_key", {"key_hash": old.key_hash, "expires_at": new.row.created_at_ms + keep_old_ms})
    return new


async def find_key(first: Shard, tenant_id: int | None, key_id: str) -> KeyRow:
    """The one key whose id begins so; OperatorError if there is none, or more than one."""
    found = [key for key in await list_keys(first, tenant_id) if key.key_hash.hex().startswith(key_id.lower())]
    if len(found) != 1 or not key_id:
        raise OperatorError(f"{len(found) if key_id else 'no'} keys have an id that begins with {key_id!r}, not one")
    return found[0]


async def note_keys_used(first: Shard, used: Mapping[bytes, int]) -> None:
    """When each key was last used, milliseconds since the epoch."""
    async with first.connection() as connection:
        await connection.execute_rows("note_keys_used", sorted(used.items()), bytes_max=first.packet_bytes_max)


async def _delete_page(shard: Shard, tenant_id: int, windows: Windows) -> int:
    names = (await job_names(shard, tenant_id, "", JobFilter(), JOBS_PER_PAGE, 0)).names
    jobs = await jobs_by_key(shard, tenant_id, [(partition_id, job_id) for _, partition_id, job_id in names])
    for job in jobs:
        await delete_job(shard, job, windows)
    return len(jobs)


async def _forget(connection: Connection, tenant_id: int) -> None:
    for statement in ("delete_tenant_limits", "delete_tenant_secrets", "delete_tenant_keys", "delete_tenant"):
        await connection.execute(statement, {"tenant_id": tenant_id})
