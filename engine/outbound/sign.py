"""Standard Webhooks signatures: HMAC-SHA256 over id, time stamp and body (https://www.standardwebhooks.com)."""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret, none itself


def signing_key(secret: str) -> bytes:
    """The key in a secret's text form, ``whsec_`` and base64."""
    return binascii.a2b_base64(secret.removeprefix(SECRET_PREFIX), strict_mode=True)


def signature(keys: Sequence[bytes], message_id: bytes, timestamp_s: int, body: bytes) -> bytes:
    """The value of ``webhook-signature``: one ``v1,`` signature for each key, so that secrets can be rotated."""
    signed = b"%b.%d.%b" % (message_id, timestamp_s, body)
    return b" ".join(b"v1," + binascii.b2a_base64(hmac.digest(key, signed, "sha256"), newline=False) for key in keys)
