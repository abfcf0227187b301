"""Tenants, their API keys and signing secrets: kept in memory, asked of the first shard again every REREAD_MS.

While that shard is away what is known stays in force for up to STALE_MS_MAX. An unknown key or tenant is asked for at
once, and that it is unknown is remembered for UNKNOWN_MS, so that a wrong key in a loop costs one question a second.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b32encode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Generic, NamedTuple, TypeVar

from engine.clock import Clock
from engine.errors import CallerError, Fault
from engine.keys import KeyMissing, Keys, Sealed
from engine.model import Definition
from engine.store.connection import Connection, Duplicate, Row
from engine.store.requests import Finish, do_nothing
from engine.store.shard import Shard
from engine.store.statements import Value

REREAD_MS = 2_000
STALE_MS_MAX = 3_600_000
UNKNOWN_MS = 1_000
# Some 300 bytes each; beyond this the least used are asked for again when they come back.
KEPT_MAX = 50_000

KEY_PREFIX = "sz_"
KEY_BYTES = 20
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
SECRET_BYTES = 32

K = TypeVar("K")
V = TypeVar("V")


class Tenant(NamedTuple):
    """A tenant as the engine needs it. ``signing_keys``: the newest signs first, older ones while they are valid.

    ``sealed`` says why not all of them can be opened here: nothing can be signed as its receivers expect it.
    """

    tenant_id: int
    name: str
    disabled: bool
    on_failure_url: str | None
    signing_keys: tuple[bytes, ...]
    limits: Mapping[str, int]
    sealed: str = ""


class ApiKey(NamedTuple):
    """A key as calls are judged by it; ``tenant_id`` is None for an operator's key."""

    key_hash: bytes
    tenant_id: int | None
    tenant: str | None
    name: str
    scope: str
    expires_at_ms: int | None
    revoked: bool
    tenant_disabled: bool


class NewTenant(NamedTuple):
    """What is shown once, when a tenant is created."""

    tenant_id: int
    api_key: str
    signing_secret: str


class Kept(Generic[K, V]):
    """Values by key, loaded when first asked for and again every REREAD_MS."""

    def __init__(
        self, load: Callable[[list[K]], Awaitable[Mapping[K, V]]], clock: Clock, kept_max: int = KEPT_MAX
    ) -> None:
        self._load = load
        self._clock = clock
        self._kept_max = kept_max
        self._values: OrderedDict[K, V | None] = OrderedDict()
        self._asked_at_ms: dict[K, int] = {}

    def known(self, key: K) -> V | None:
        """What is in memory, without asking; None where nothing is or it is too old to be trusted."""
        value = self._values.get(key)
        return value if value is not None and self._age_ms(key) <= STALE_MS_MAX else None

    async def get(self, key: K) -> V | None:
        """The value, or None if there is none; StoreUnavailable if it is not known and cannot be asked for."""
        value = self._values.get(key)
        if value is not None and self._age_ms(key) <= STALE_MS_MAX:
            self._values.move_to_end(key)
            return value
        if key not in self._values or self._age_ms(key) > UNKNOWN_MS:
            await self.load([key])
        return self._values.get(key)

    async def load(self, keys: Iterable[K]) -> None:
        """Ask for these now."""
        wanted = list(keys)
        asked_at_ms = self._clock.boot_ms()
        found = await self._load(wanted)
        for key in wanted:
            self._values[key] = found.get(key)
            self._asked_at_ms[key] = asked_at_ms
        while len(self._values) > self._kept_max:
            oldest, _ = self._values.popitem(last=False)
            del self._asked_at_ms[oldest]

    async def reread(self) -> None:
        """Ask again for everything that was there; forget what was not."""
        for key in [key for key, value in self._values.items() if value is None and self._age_ms(key) > UNKNOWN_MS]:
            del self._values[key], self._asked_at_ms[key]
        if self._values:
            await self.load(list(self._values))

    def _age_ms(self, key: K) -> int:
        return self._clock.boot_ms() - self._asked_at_ms[key]


class Tenants:
    """Every process's view of tenants and keys. ``reread`` is called every REREAD_MS."""

    def __init__(self, first: Shard, clock: Clock) -> None:
        self._first = first
        self._clock = clock
        self._open_secret = lru_cache(KEPT_MAX)(partial(open_secret, first.keys))
        self.keys: Kept[bytes, ApiKey] = Kept(self._load_keys, clock)
        self.tenants: Kept[int, Tenant] = Kept(self._load_tenants, clock)
        self.sealed: dict[int, str] = {}
        """Why nothing can be signed for these tenants: only their own runs wait for it."""

    async def reread(self) -> None:
        await self.keys.reread()
        await self.tenants.reread()

    def is_told(self, tenant_id: int, definition: Definition) -> bool:
        """Whether somebody is told of this job's late and skipped runs; if unsure, yes: who sends notices finds out."""
        if definition.on_failure_url is not None:
            return True
        tenant = self.tenants.known(tenant_id)
        return tenant is None or tenant.on_failure_url is not None

    async def _load_keys(self, hashes: list[bytes]) -> dict[bytes, ApiKey]:
        shard = self._first
        async with shard.connection() as connection:
            rows = await _fetch(connection, "keys_by_hash", hashes, shard)
        return {bytes(row[0]): _api_key(row) for row in rows}

    async def _load_tenants(self, tenant_ids: list[int]) -> dict[int, Tenant]:
        shard = self._first
        async with shard.connection() as connection:
            rows = await _fetch(connection, "tenants_by_id", tenant_ids, shard)
            now_ms = self._clock.now_ms()
            stored = await _fetch(connection, "secrets_by_tenant", tenant_ids, shard, {"now_ms": now_ms})
            limits = await _fetch(connection, "limits_by_tenant", tenant_ids, shard)
        signing = [(row[0], self._opened(row[0], bytes(row[1]))) for row in stored]
        tenants = {row[0]: _tenant(row, signing, limits) for row in rows}
        for tenant_id in tenant_ids:
            self.sealed.pop(tenant_id, None)
        self.sealed |= {tenant_id: tenant.sealed for tenant_id, tenant in tenants.items() if tenant.sealed}
        return tenants

    def _opened(self, tenant_id: int, stored: bytes) -> bytes | str:
        """A signing secret, or why it cannot be opened: that is one tenant's trouble and no other's."""
        try:
            return self._open_secret(tenant_id, stored)
        except (KeyMissing, ValueError) as error:
            return str(error)


async def create_tenant(first: Shard, name: str) -> NewTenant:
    """A new tenant with a full key and a signing secret; CallerError if the name is taken."""
    api_key, secret = new_api_key(), secrets.token_bytes(SECRET_BYTES)
    try:
        async with first.transaction() as connection:
            now_ms = int((await connection.execute("shard_now")).rows[0][0])
            await connection.execute("insert_tenant", {"name": name, "now_ms": now_ms})
            tenant_id = int((await connection.execute("tenant_by_name", {"name": name})).rows[0][0])
            await insert_key(connection, api_key, tenant_id, "first", "full", now_ms, None)
            await _insert_secret(connection, tenant_id, now_ms, secret)
    except Duplicate as error:
        raise CallerError([Fault("/name", f"there is a tenant {name} already")]) from error
    return NewTenant(tenant_id, api_key, show_secret(secret))


class Secret(NamedTuple):
    """A signing secret in force; ``retires_at_ms`` is None for the one that takes no end."""

    secret: bytes
    created_at_ms: int
    retires_at_ms: int | None


async def secrets_of(first: Shard, tenant_id: int) -> list[Secret]:
    """A tenant's secrets in force, the newest first: it signs first."""
    async with first.connection() as connection:
        now_ms = int((await connection.execute("shard_now")).rows[0][0])
        return await _live_secrets(connection, tenant_id, now_ms)


async def rotate_secret(
    first: Shard, tenant_id: int, keep_old_ms: int, finish: Finish[list[Secret]] = do_nothing
) -> list[Secret]:
    """Make a new secret; the old ones stay in force for a while, so that receivers can follow."""

    async def transaction() -> list[Secret]:
        async with first.transaction() as connection:
            await connection.execute("lock_tenant", {"tenant_id": tenant_id})
            now_ms = int((await connection.execute("shard_now")).rows[0][0])
            await connection.execute("retire_secrets", {"tenant_id": tenant_id, "retires_at": now_ms + keep_old_ms})
            await _insert_secret(connection, tenant_id, now_ms, secrets.token_bytes(SECRET_BYTES))
            rotated = await _live_secrets(connection, tenant_id, now_ms)
            await finish(connection, rotated)
            return rotated

    return await first.retrying(transaction)


async def _live_secrets(connection: Connection, tenant_id: int, now_ms: int) -> list[Secret]:
    answer = await connection.execute("live_secrets", {"tenant_id": tenant_id, "now_ms": now_ms})
    keys = connection.keys
    return [Secret(open_secret(keys, tenant_id, bytes(row[0])), row[1], row[2]) for row in answer.rows]


async def _insert_secret(connection: Connection, tenant_id: int, now_ms: int, secret: bytes) -> None:
    sealed = seal_secret(connection.keys, tenant_id, secret)
    values: dict[str, Value] = {"tenant_id": tenant_id, "now_ms": now_ms, "secret": sealed}
    await connection.execute("insert_secret", values)


def seal_secret(keys: Keys, tenant_id: int, secret: bytes) -> bytes:
    """A signing secret as it is stored."""
    return keys.seal(secret, _about(tenant_id)).encode()


def open_secret(keys: Keys, tenant_id: int, stored: bytes) -> bytes:
    """The inverse."""
    return keys.open(Sealed.parse(stored), _about(tenant_id))


def _about(tenant_id: int) -> bytes:
    return f"signing secret {tenant_id}".encode()


async def insert_key(
    connection: Connection,
    api_key: str,
    tenant_id: int | None,
    name: str,
    scope: str,
    now_ms: int,
    expires_at_ms: int | None,
) -> bytes:
    """Store a key: its hash, never itself. Returns the hash."""
    key_hash = hash_key(api_key)
    await connection.execute(
        "insert_key",
        {
            "key_hash": key_hash,
            "tenant_id": tenant_id,
            "name": name,
            "scope": scope,
            "now_ms": now_ms,
            "expires_at": expires_at_ms,
        },
    )
    return key_hash


def new_api_key() -> str:
    """``sz_`` and 160 random bits, so that secret scanners find it and nobody guesses it."""
    return KEY_PREFIX + b32encode(secrets.token_bytes(KEY_BYTES)).decode().lower()


def hash_key(api_key: str) -> bytes:
    """What is stored of a key. A slow hash would add nothing to 160 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


def show_secret(secret: bytes) -> str:
    """A signing secret as receivers know it (Standard Webhooks)."""
    return SECRET_PREFIX + b64encode(secret).decode()


async def _fetch(
    connection: Connection, name: str, keys: Iterable[object], shard: Shard, values: Mapping[str, int] | None = None
) -> list[Row]:
    return await connection.fetch_rows(name, [(key,) for key in keys], values, bytes_max=shard.packet_bytes_max)


def _api_key(row: Row) -> ApiKey:
    key_hash, tenant_id, name, scope, expires_at, revoked_at, tenant, disabled_at = row
    return ApiKey(
        bytes(key_hash), tenant_id, tenant, name, scope, expires_at, revoked_at is not None, disabled_at is not None
    )


def _tenant(row: Row, signing: Sequence[tuple[int, bytes | str]], limits: list[Row]) -> Tenant:
    tenant_id, name, disabled_at, on_failure = row
    opened = [secret for owner, secret in signing if owner == tenant_id]
    return Tenant(
        tenant_id,
        name,
        disabled_at is not None,
        on_failure,
        tuple(secret for secret in opened if isinstance(secret, bytes)),
        {limit[1]: limit[2] for limit in limits if limit[0] == tenant_id},
        next((problem for problem in opened if isinstance(problem, str)), ""),
    )
