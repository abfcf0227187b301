"""Where the Cassandra of the history is, as one address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote

from engine.errors import OperatorError
from engine.trust import tls_problem

EXAMPLE = "cassandra://user:password@host1:9042,host2:9042/secondzero?datacenter=dc1"
PORT = 9042

_SHAPE = re.compile(r"cassandra://(?:([^@/]*)@)?([^/?@]+)/([^/?]*)(?:\?(.*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
# What CQL takes unquoted, so that nothing has to be quoted anywhere.
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class Contact:
    """Contact points (host, port), a keyspace, an account ('' for none) and the datacenter to talk to (None: that of
    the first contact point that answers). ``tls`` as in the address of a shard (engine/config.py)."""

    points: tuple[tuple[str, int], ...]
    keyspace: str
    user: str = ""
    password: str = ""
    datacenter: str | None = None
    tls: str | None = None

    @classmethod
    def parse(cls, text: str) -> Contact:
        """OperatorError in one line, without the password, for what is none."""
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise _wrong(text, "it is not spelled so")
        account, points, keyspace, query = found.groups()
        options = parse_qs(query or "", keep_blank_values=True)
        if unknown := options.keys() - {"datacenter", "tls"}:
            raise _wrong(text, f"unknown option {min(unknown)!r}")
        tls = options.get("tls", [None])[0]
        if tls is not None and (problem := tls_problem(tls)):
            raise _wrong(text, problem)
        if not _KEYSPACE.fullmatch(keyspace):
            raise _wrong(text, "it must end in a keyspace: lower-case letters, digits and underscores, at most 48")
        user, _, password = (account or "").partition(":")
        hosts = tuple(_point(text, point) for point in points.split(","))
        return cls(hosts, keyspace, unquote(user), unquote(password), options.get("datacenter", [""])[0] or None, tls)

    def text(self) -> str:
        """The whole address, password included: for variables that only their owner can read."""
        account = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.user else ""
        return self._text(account)

    def __str__(self) -> str:
        """The address without the password, for people and logs."""
        return self._text(f"{self.user}@" if self.user else "")

    def __repr__(self) -> str:
        return f"Contact({self})"

    def _text(self, account: str) -> str:
        points = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.points)
        given = (("datacenter", self.datacenter), ("tls", self.tls))
        options = "&".join(f"{name}={quote(value)}" for name, value in given if value)
        return f"cassandra://{account}{points}/{self.keyspace}{'?' if options else ''}{options}"


def _point(text: str, point: str) -> tuple[str, int]:
    found = _HOST.fullmatch(point)
    if found is None or not 0 < int(found[2] or PORT) < 65_536:
        raise _wrong(text, f"{point!r} is no host with a port")
    return found[1].strip("[]"), int(found[2] or PORT)


def _wrong(text: str, problem: str) -> OperatorError:
    head, at, tail = text.rpartition("@")
    shown = f"{head.split(':')[0]}://***@{tail}" if at else text
    return OperatorError(f"Cassandra address {shown}: {problem}; example: {EXAMPLE}")
