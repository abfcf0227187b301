"""Settings: flags, then SECONDZERO_* variables, then a TOML file; every problem is found at once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from engine.errors import OperatorError

DSN_EXAMPLE = "mysql://user:password@127.0.0.1:3306/secondzero"


@dataclass(frozen=True, slots=True)
class Dsn:
    """Where a shard is: a TCP address or a Unix socket, an account and a database."""

    user: str
    password: str
    host: str
    port: int
    database: str
    unix_socket: str | None = None

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """``mysql://user:password@host:port/database`` or ``mysql://user@/database?unix_socket=/path``."""
        parts = urlsplit(text)
        problem = _dsn_problem(parts.scheme, parts.path)
        if problem:
            raise OperatorError(f"shard address {_masked(text)}: {problem}; example: {DSN_EXAMPLE}")
        options = parse_qs(parts.query)
        return cls(
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            database=unquote(parts.path[1:]),
            unix_socket=options["unix_socket"][0] if "unix_socket" in options else None,
        )

    def __str__(self) -> str:
        """The address without the password, for people and logs."""
        if self.unix_socket:
            return f"mysql://{self.user}@/{self.database}?unix_socket={self.unix_socket}"
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"Dsn({self})"


def _dsn_problem(scheme: str, path: str) -> str | None:
    if scheme != "mysql":
        return f"the scheme must be mysql, not {scheme!r}"
    if len(path) < 2 or "/" in path[1:]:
        return "it must end in one database name"
    return None


def _masked(text: str) -> str:
    head, at, tail = text.rpartition("@")
    return f"{head.split(':')[0]}://***@{tail}" if at else text
