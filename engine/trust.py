"""Whom the databases' clients trust: the authorities of an address's ``tls``, and the context that is made of them."""

from __future__ import annotations

import ssl
from functools import cache

from engine.errors import OperatorError

# Instead of a file: the authorities that this machine trusts.
SYSTEM_AUTHORITIES = "system"


def tls_problem(tls: str) -> str | None:
    """What is wrong with an address's ``tls``, if anything."""
    if tls == SYSTEM_AUTHORITIES or tls.startswith("/"):
        return None
    return f"tls must be {SYSTEM_AUTHORITIES!r} or the absolute path of a file of authorities, not {tls!r}"


@cache
def trusting(authorities: str) -> ssl.SSLContext:
    """A client's side of TLS: no certificate is taken on trust, and nothing is said to a server without one."""
    try:
        context = ssl.create_default_context(cafile=None if authorities == SYSTEM_AUTHORITIES else authorities)
    except OSError as error:
        raise OperatorError(f"tls={authorities}: not a readable file of certificates (PEM)") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python takes SSLKEYLOGFILE from the environment and would write down what opens every session.
    context.keylog_filename = None  # type: ignore[assignment] # None is what switches it off
    return context


def refused_certificate(error: BaseException | None) -> str | None:
    """Why a server's certificate was refused, if that is what is behind an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {error.verify_message}"
        error = error.__cause__ or error.__context__
    return None
