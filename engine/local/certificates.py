"""Certificates made on the spot for receivers on this machine; nobody else is asked to trust them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from engine.clock import wall_ms

_VALID = timedelta(days=30)


def write_certificate(certificate: Path, key: Path, names: Sequence[str]) -> None:
    """A self-signed server certificate for names and addresses, and its key readable by the owner alone."""
    private = ec.generate_private_key(ec.SECP256R1())
    key.touch(mode=0o600)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate.write_bytes(_self_signed(private, names).public_bytes(serialization.Encoding.PEM))


def _self_signed(private: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> x509.Certificate:
    now = datetime.fromtimestamp(wall_ms() / 1000, UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
