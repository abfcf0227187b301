"""The keys that secrets are encrypted with: the first of them seals, all of them open.

A key is 32 random bytes, written as ``szk_`` and base32, one a line in a file (or several in a variable, parted by
spaces). Its id, the beginning of its hash, stands beside everything it has sealed, so that keys can be changed while
the service runs: a new key is put first, `secondzero keys rotate` seals again what older ones have sealed, and then
those can go. A file that has changed is read again when it matters: before something is sealed, and when a key is
missing.

AES-256-GCM with random nonces of 96 bits: good for 2**32 secrets a key (NIST SP 800-38D, 8.3). What a secret belongs to
is authenticated with it, so that one cannot be copied from one job or tenant to another.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from base64 import b32decode, b32encode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engine.errors import OperatorError, StoreUnavailable

KEY_PREFIX = "szk_"
KEY_BYTES = 32
KEY_ID_CHARS = 8
NONCE_BYTES = 12
# A rotation needs two; more are left over from others.
KEYS_MAX = 16

_EVERYBODY = 0o007


class KeyMissing(StoreUnavailable):
    """A secret was sealed with a key that is not here (yet): nothing is lost, and nothing can be done without it."""


class Sealed(NamedTuple):
    """A secret as it is stored, and which key opens it."""

    key_id: str
    data: bytes

    @classmethod
    def parse(cls, stored: bytes) -> Sealed:
        return cls(stored[:KEY_ID_CHARS].decode("latin-1"), stored[KEY_ID_CHARS:])

    def encode(self) -> bytes:
        """Both in one column."""
        return self.key_id.encode() + self.data


class Keys:
    """The keys of one service: given as texts, or those of a file, which is read when they are first needed.

    Whatever needs a key raises OperatorError where there is none, or where the file cannot be used. With ``make`` a
    file that is not there is made.
    """

    def __init__(self, texts: Sequence[str] = (), file: Path | None = None, *, make: bool = False) -> None:
        self.source = str(file) if file else "SECONDZERO_SECRETS_KEY"
        self.file = file
        self._make = make
        self._changed_ns = 0
        self._take(texts)

    @property
    def current_id(self) -> str:
        """The id of the key that seals."""
        self._refresh()
        return self._current()

    @property
    def ids(self) -> list[str]:
        """The one that seals first; none where no file is and none shall be made yet."""
        if self.file is None or self.file.exists():
            self._refresh()
        return list(self._ciphers)

    def seal(self, secret: bytes, about: bytes) -> Sealed:
        """Encrypt a secret; ``about`` says what it belongs to and is asked for again to open it."""
        self._refresh()
        key_id = self._current()
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(key_id, nonce + self._ciphers[key_id].encrypt(nonce, secret, about))

    def open(self, sealed: Sealed, about: bytes) -> bytes:
        """The secret; KeyMissing without its key, ValueError if it belongs to something else or was changed."""
        if sealed.key_id not in self._ciphers:
            self._refresh_to_open(sealed.key_id)
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise KeyMissing(f"a secret is encrypted with key {sealed.key_id}, which is not in {self.source}")
        try:
            return cipher.decrypt(sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:], about)
        except InvalidTag as error:
            raise ValueError(f"what key {sealed.key_id} has encrypted was changed, or moved from elsewhere") from error

    def has(self, key_id: str) -> bool:
        """Whether what this key has sealed can be opened here, as far as was read."""
        return key_id in self._ciphers

    def _refresh_to_open(self, key_id: str) -> None:
        """A file that cannot be used for now takes nothing away: what it lacks is missing, and no more is wrong."""
        try:
            self._refresh()
        except OperatorError as error:
            raise KeyMissing(f"a secret is encrypted with key {key_id}; {error}") from error

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._ciphers)})"

    def _current(self) -> str:
        if not self._ciphers:
            raise OperatorError("there is no key to encrypt secrets with: give --secrets-key-file")
        return next(iter(self._ciphers))

    def _refresh(self) -> None:
        """A file that has been replaced since it was read is read again."""
        if self.file is None:
            return
        if self._make and not self._ciphers:
            make_key_file(self.file)
        try:
            status = self.file.stat()
            if status.st_mtime_ns != self._changed_ns:
                if status.st_mode & _EVERYBODY:
                    raise OperatorError(f"{self.file}: everybody on this machine can read it: chmod 600 {self.file}")
                self._take(_texts_of(self.file))
                self._changed_ns = status.st_mtime_ns
        except OSError as error:
            raise OperatorError(f"{self.file}: the key of secrets cannot be read: {error.strerror}") from error

    def _take(self, texts: Sequence[str]) -> None:
        if len(texts) > KEYS_MAX:
            raise OperatorError(f"{self.source}: at most {KEYS_MAX} keys")
        keys = [_key_of(text, f"{self.source}: key {number}") for number, text in enumerate(texts, 1)]
        self._ciphers = {key_id_of(key): AESGCM(key) for key in keys}


NO_KEYS = Keys()


def new_key() -> str:
    """The text of a new random key."""
    return KEY_PREFIX + b32encode(secrets.token_bytes(KEY_BYTES)).decode().rstrip("=").lower()


def key_id_of(key: bytes) -> str:
    """What names a key and tells nothing about it."""
    return hashlib.sha256(b"secondzero key " + key).hexdigest()[:KEY_ID_CHARS]


def make_key_file(file: Path) -> bool:
    """A file with a new key, which only its owner can read; False if there is one already, whoever has made it."""
    if file.exists():
        return False
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(new, [new_key()])
        try:
            os.link(new, file)  # of several processes that start at once, one wins
        except FileExistsError:
            return False
        finally:
            new.unlink()
    except OSError as error:
        raise OperatorError(
            f"{file}: no key for secrets can be kept there ({error.strerror}): give --secrets-key-file"
        ) from error
    return True


def add_key(file: Path) -> str:
    """Put a new key first in a file, the others behind it; returns its text. Whoever uses the file notices."""
    key = new_key()
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    _write(new, [key, *_texts_of(file)])
    new.replace(file)
    return key


def _write(file: Path, texts: Sequence[str]) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write("# The first key encrypts the secrets in MySQL, all of them decrypt. Keep a copy elsewhere.\n")
        stream.writelines(f"{text}\n" for text in texts)
        stream.flush()
        os.fsync(stream.fileno())


def _texts_of(file: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in file.read_text(errors="replace").splitlines()]
    texts = [line for line in lines if line]
    if not texts:
        raise OperatorError(f"{file}: no key in it; `secondzero keys create` prints a new one")
    return texts


def _key_of(text: str, where: str) -> bytes:
    """The bytes of a key; what is wrong is said without the key."""
    try:
        encoded = text.removeprefix(KEY_PREFIX).upper()
        key = b32decode(encoded + "=" * (-len(encoded) % 8))
    except ValueError:
        key = b""
    if not text.startswith(KEY_PREFIX) or len(key) != KEY_BYTES:
        raise OperatorError(f"{where}: not a key: {KEY_PREFIX} and 52 letters and digits; see secondzero keys create")
    return key
