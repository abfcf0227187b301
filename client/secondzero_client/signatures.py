"""Whether a request is the service's own: Standard Webhooks signatures (https://www.standardwebhooks.com)."""

from __future__ import annotations

import binascii
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret, none itself
# Both ways; a signature that is older may be somebody's who has recorded it.
TOLERANCE_S = 300

Secrets = Sequence[str] | Callable[[], Sequence[str]]
"""Every secret that is valid now: the new one and, for a while, the old one. A function is asked for each request."""


class Signatures:
    """Checks requests against all secrets that are valid."""

    def __init__(self, secrets: Secrets, tolerance_s: int = TOLERANCE_S) -> None:
        self._secrets = secrets
        self._tolerance_s = tolerance_s
        self._keys: dict[str, bytes] = {}
        self._valid_keys()  # a secret that is none is told at the start, not by every request

    def fault(self, headers: Mapping[str, str], body: bytes, now_s: float) -> str | None:
        """Why the request cannot be trusted; None if it can. Names of headers are lower case."""
        message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not message_id or not (sent_at.isascii() and sent_at.isdigit()):
            return "not signed: needs webhook-id, webhook-timestamp and webhook-signature"
        if abs(now_s - int(sent_at[:12])) > self._tolerance_s:
            return f"the time stamp is more than {self._tolerance_s} s from now"
        signed = f"{message_id}.{sent_at}.".encode("latin-1") + body
        given = list(_signatures(headers.get("webhook-signature", "")))
        for key in self._valid_keys():
            expected = hmac.digest(key, signed, "sha256")
            if any(hmac.compare_digest(expected, signature) for signature in given):
                return None
        return "the signature is of none of the secrets"

    def _valid_keys(self) -> list[bytes]:
        secrets = self._secrets() if callable(self._secrets) else self._secrets
        for secret in secrets:
            if secret not in self._keys:
                self._keys = {each: self._keys.get(each) or _key(each) for each in secrets}
        return [self._keys[secret] for secret in secrets]


def _key(secret: str) -> bytes:
    """The key in a secret's text form, ``whsec_`` and base64. ValueError if it is none."""
    try:
        key = binascii.a2b_base64(secret.removeprefix(SECRET_PREFIX).encode("ascii"))
    except ValueError as error:
        raise ValueError("a signing secret is whsec_ and base64") from error
    if not key:
        raise ValueError("a signing secret is empty")
    return key


def _signatures(value: str) -> Iterable[bytes]:
    for part in value.split(" "):
        version, _, text = part.partition(",")
        if version == "v1":
            try:
                yield binascii.a2b_base64(text.encode("ascii"))
            except ValueError:  # no base64, so nobody's signature
                continue
