"""Standard Webhooks signatures: HMAC-SHA256 over id, time stamp and body (https://www.standardwebhooks.com)."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Sequence
from functools import lru_cache

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret, none itself

# Keys that are kept prepared, some for each tenant that calls now.
KEYS_MAX = 10_000


def signing_key(secret: str) -> bytes:
    """The key in a secret's text form, ``whsec_`` and base64."""
    return binascii.a2b_base64(secret.removeprefix(SECRET_PREFIX), strict_mode=True)


def signature(keys: Sequence[bytes], message_id: bytes, timestamp_s: int, body: bytes) -> bytes:
    """The value of ``webhook-signature``: one ``v1,`` signature for each key, so that secrets can be rotated."""
    signed = b"%b.%d.%b" % (message_id, timestamp_s, body)
    return b" ".join([b"v1," + binascii.b2a_base64(_mac(key, signed), newline=False) for key in keys])


def _mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) from a key's two prepared states: half the time of preparing them for each message."""
    prepared_inner, prepared_outer = _prepared(key)
    inner, outer = prepared_inner.copy(), prepared_outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(KEYS_MAX)
def _prepared(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
