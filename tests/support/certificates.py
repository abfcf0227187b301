"""Certificates of every kind that a client must refuse, and one that it must accept, all by one authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAME = "hooks.example.com"


@dataclass
class Authority:
    """An authority of the tests' own; ``file`` is what clients trust."""

    folder: Path

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests' authority")])
        builder = _builder(self._name, self._name, self._key.public_key(), timedelta(-1), timedelta(30))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = self.folder / "authority.pem"
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def server(
        self,
        *,
        name: str = NAME,
        begins: timedelta = timedelta(-1),
        ends: timedelta = timedelta(1),
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
        self_signed: bool = False,
    ) -> ssl.SSLContext:
        """A server's TLS settings with a certificate of this kind."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject if self_signed else self._name, key.public_key(), begins, ends)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        certificate = builder.sign(key if self_signed else self._key, hashes.SHA256())
        file = self.folder / "server.pem"
        file.write_bytes(_pem(certificate) + _private_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: timedelta, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
