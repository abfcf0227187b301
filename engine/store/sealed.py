"""Definitions as they are stored: the values of secret headers sealed, everything else readable.

Everywhere else a definition is plain, so that equality is decided on what the tenant wrote. What a sealed value belongs
to is its job and its header. One that cannot be opened stays sealed wherever it goes, and is stored again as it is: it
is nobody else's trouble, and nothing is lost.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from engine.keys import KeyMissing, Keys, Sealed
from engine.model import SEALED_MARK, SECRET_MARK, Definition, HeaderValue, HttpTarget


class Stored(NamedTuple):
    """A definition as it is stored; ``key_id`` names the key of its secrets, None without any."""

    definition: bytes
    key_id: str | None


def seal_definition(plain: bytes, job_id: int, keys: Keys) -> Stored:
    """An encoded definition with its secrets sealed. One without secrets costs a search of its bytes."""
    if SECRET_MARK not in plain and SEALED_MARK not in plain:
        return Stored(plain, None)
    key_ids: set[str] = set()
    others: set[str] = set()

    def seal(name: str, header: HeaderValue) -> HeaderValue:
        if header.sealed_by:
            others.add(header.sealed_by)
            return header
        sealed = keys.seal(header.value.encode(), _about(job_id, name))
        key_ids.add(sealed.key_id)
        return HeaderValue(base64.b64encode(sealed.data).decode(), secret=True, sealed_by=sealed.key_id)

    stored = _with_secrets(Definition.decode(plain), seal).encode()
    if len(key_ids) > 1:  # the keys have changed meanwhile: one for all of it
        return seal_definition(plain, job_id, keys)
    # What another key has sealed is what a rotation must find.
    return Stored(stored, min(others - key_ids or key_ids, default=None))


def open_definition(stored: bytes, job_id: int, keys: Keys) -> bytes:
    """The inverse: the encoded definition as it was written. What has no key here, or is damaged, stays as it is, so
    that the job can be answered, and set right."""
    if SEALED_MARK not in stored:
        return stored
    try:
        return decode_sealed(stored, job_id, keys).encode()
    except (KeyMissing, ValueError, LookupError, TypeError):
        return stored


def check_opened(definition: Definition, keys: Keys) -> None:
    """KeyMissing where secrets of it are sealed with a key that is not here: whether it equals another cannot be told.
    A damaged one can only be replaced."""
    target = definition.target
    for _, header in target.headers if isinstance(target, HttpTarget) else ():
        if header.sealed_by and not keys.has(header.sealed_by):
            raise KeyMissing(f"a secret is encrypted with key {header.sealed_by}, which is not in {keys.source}")


def decode_sealed(stored: bytes, job_id: int, keys: Keys) -> Definition:
    """The plain definition of a stored one. KeyMissing, or ValueError and the like, where it cannot be opened."""
    definition = Definition.decode(stored)
    if SEALED_MARK not in stored:
        return definition

    def unseal(name: str, header: HeaderValue) -> HeaderValue:
        if not header.sealed_by:
            return header
        sealed = Sealed(header.sealed_by, base64.b64decode(header.value))
        return HeaderValue(keys.open(sealed, _about(job_id, name)).decode(), secret=True)

    return _with_secrets(definition, unseal)


def _with_secrets(definition: Definition, change: Callable[[str, HeaderValue], HeaderValue]) -> Definition:
    target = definition.target
    if not isinstance(target, HttpTarget):
        return definition
    headers = tuple((name, change(name, header) if header.secret else header) for name, header in target.headers)
    return replace(definition, target=replace(target, headers=headers))


def _about(job_id: int, name: str) -> bytes:
    return f"header {job_id:016x} {name}".encode()
