"""What an operator may set: shard addresses, and every setting with its name, its bounds and its default."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from engine.contact import Contact
from engine.errors import OperatorError
from engine.trust import tls_problem

PREFIX = "SECONDZERO_"

DSN_EXAMPLE = "mysql://user:password@127.0.0.1:3306/secondzero"


@dataclass(frozen=True, slots=True)
class Dsn:
    """Where a shard is: a TCP address or a Unix socket, an account and a database.

    ``tls`` is None for none (a socket needs none), ``system`` or the path of a file of authorities: then nothing but a
    server whose certificate they vouch for, and that names ``host``, is talked to.
    """

    user: str
    password: str
    host: str
    port: int
    database: str
    unix_socket: str | None = None
    tls: str | None = None

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """``mysql://user:password@host:port/database`` or ``mysql://user@/database?unix_socket=/path``.

        With ``?tls=/path/of/authorities.pem`` or ``?tls=system`` over TLS.
        """
        try:
            parts = urlsplit(text)
            host, port, options = (
                parts.hostname or "127.0.0.1",
                parts.port or 3306,
                parse_qs(parts.query, keep_blank_values=True),
            )
            problem = _dsn_problem(parts.scheme, parts.path, options)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise OperatorError(f"shard address {_masked(text)}: {problem}; example: {DSN_EXAMPLE}")
        return cls(
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            host=host,
            port=port,
            database=unquote(parts.path[1:]),
            unix_socket=options["unix_socket"][0] if "unix_socket" in options else None,
            tls=options["tls"][0] if "tls" in options else None,
        )

    def text(self) -> str:
        """The whole address, password included: for files and variables that only their owner can read."""
        account = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        database = quote(self.database, safe="")
        if self.unix_socket:
            return f"mysql://{account}@/{database}?unix_socket={quote(self.unix_socket)}"
        return f"mysql://{account}@{self._host_text}:{self.port}/{database}" + (
            f"?tls={quote(self.tls)}" if self.tls else ""
        )

    def __str__(self) -> str:
        """The address without the password, for people and logs."""
        if self.unix_socket:
            return f"mysql://{self.user}@/{self.database}?unix_socket={self.unix_socket}"
        return f"mysql://{self.user}@{self._host_text}:{self.port}/{self.database}"

    @property
    def _host_text(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __repr__(self) -> str:
        return f"Dsn({self})"


def _dsn_problem(scheme: str, path: str, options: Mapping[str, list[str]]) -> str | None:
    if scheme != "mysql":
        return f"the scheme must be mysql, not {scheme!r}"
    if len(path) < 2 or "/" in path[1:]:
        return "it must end in one database name"
    unknown = options.keys() - {"unix_socket", "tls"}
    if unknown:
        return f"unknown option {min(unknown)!r}"
    return _tls_problem(options["tls"][0], options) if "tls" in options else None


def _tls_problem(tls: str, options: Mapping[str, list[str]]) -> str | None:
    if "unix_socket" in options:
        return "a socket takes no tls"
    return tls_problem(tls)


def _masked(text: str) -> str:
    head, at, tail = text.rpartition("@")
    return f"{head.split(':')[0]}://***@{tail}" if at else text


Reader = Callable[[object], Any]
"""Makes a setting's value of text or of a TOML value; ValueError says what it must be."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A setting that is printed as three stars, whoever prints it."""

    value: str

    def text(self) -> str:
        """Itself: for variables that only their owner can read."""
        return self.value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"


class Field(NamedTuple):
    """One setting: its name as the operator spells it, which commands take it (by group), and how it is read.

    A secret one has no flag: a command line shows in ``ps``.
    """

    name: str
    attribute: str
    group: str
    read: Reader
    help: str
    many: bool
    secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _setting(
    default: object,
    group: str,
    read: Reader,
    text: str,
    *,
    name: str = "",
    many: bool = False,
    secret: bool = False,
) -> Any:
    about = {"group": group, "read": read, "help": text, "name": name, "many": many, "secret": secret}
    return (
        field(default_factory=default, metadata=about) if callable(default) else field(default=default, metadata=about)
    )


def _whole(low: int, high: int) -> Reader:
    def read(value: object) -> int:
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if re.fullmatch(r"-?[0-9]{1,15}", text) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"must be a whole number from {low} to {high}, not {value!r}")

    return read


def _one_of(*choices: str) -> Reader:
    def read(value: object) -> str:
        if value in choices:
            return str(value)
        raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")

    return read


def _dsn(value: object) -> Dsn:
    try:
        return Dsn.parse(str(value))
    except OperatorError as error:
        raise ValueError(str(error)) from error


def _cassandra(value: object) -> Contact:
    try:
        return Contact.parse(str(value))
    except OperatorError as error:
        raise ValueError(str(error)) from error


def _folder(value: object) -> Path:
    if isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError(f"must be the path of a folder, not {value!r}")


def _file(value: object) -> Path:
    if isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError(f"must be the path of a file, not {value!r}")


def _secret(value: object) -> Secret:
    if isinstance(value, str) and value:
        return Secret(value)
    raise ValueError("must be a text")


def yes_or_no(value: object) -> bool:
    """A setting whose flag needs no value."""
    words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise ValueError(f"must be yes or no, not {value!r}")


def _origin(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+", value):
        return value
    raise ValueError(f"must be an origin such as https://console.example.com, not {value!r}")


def _contact(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[!-'*-\[\]-~]([ -'*-\[\]-~]{0,198}[!-'*-\[\]-~])?", value):
        return value
    raise ValueError(f"must be a mail address or URL, without parentheses or backslashes, not {value!r}")


def _listen(value: object) -> str:
    """An address, or ``fd://N``: a listening socket that the starter left open."""
    if isinstance(value, str) and (re.fullmatch(r"fd://[0-9]{1,6}", value) or _is_address(value)):
        return value
    raise ValueError(f"must be an IP address such as 127.0.0.1 or 0.0.0.0, not {value!r}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _network(value: object) -> str:
    try:
        return str(ipaddress.ip_network(str(value)))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from error


def _cores() -> int:
    return len(os.sched_getaffinity(0))


_HOUR_MS = 3_600_000

# What a new fleet has where nothing is said; an old one keeps what it was created with.
NEW_FLEET_SHARDS = 2
NEW_FLEET_PARTITIONS = 64
NEW_FLEET_HISTORY = "mysql"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator may set. A setting is known by the name of its attribute, unless ``name`` says another."""

    shards: tuple[Dsn, ...] = _setting((), "shards", _dsn, "address of a MySQL shard", name="shard", many=True)
    keeper_shards: tuple[Dsn, ...] = _setting(
        (),
        "engine",
        _dsn,
        "address of a shard for the keeper alone, which makes and drops days",
        name="keeper_shard",
        many=True,
    )
    shard_password_file: Path | None = _setting(  # noqa: RUF009 - a field, like the others
        None, "shards", _file, "file with the password of shards whose address has none; or one a line for each"
    )
    secrets_key_file: Path | None = _setting(  # noqa: RUF009 - a field, like the others
        None, "secrets", _file, "file with the keys that secrets in MySQL are encrypted with, made if none is named"
    )
    secrets_keys: tuple[Secret, ...] = _setting(
        (), "secrets", _secret, "the keys themselves", name="secrets_key", many=True, secret=True
    )
    data: Path = _setting(  # noqa: RUF009 - a field, like the others
        lambda: Path("data"), "data", _folder, "folder of everything that runs on this machine"
    )
    shard_count: int | None = _setting(
        None, "local", _whole(1, 64), "MySQL servers of a new fleet on this machine, fixed for its life", name="shards"
    )
    partition_count: int | None = _setting(
        None, "fleet", _whole(1, 1024), "partitions of a new fleet, fixed for its life", name="partitions"
    )
    executors: int = _setting(_cores, "engine", _whole(1, 256), "executor processes, one for each core")
    listen: str = _setting("127.0.0.1", "listen", _listen, "address to listen on")
    port: int = _setting(8900, "api", _whole(0, 65_535), "port of the API, 0 for a free one")
    tls_cert: Path | None = _setting(  # noqa: RUF009 - a field, like the others
        None, "serve", _file, "TLS certificate of the API, PEM with its chain"
    )
    tls_key: Path | None = _setting(None, "serve", _file, "the certificate's key")  # noqa: RUF009
    behind_proxy: bool = _setting(
        False, "serve", yes_or_no, "something in front of the API does TLS: other addresses need no certificate"
    )
    api_processes: int = _setting(1, "serve", _whole(1, 256), "processes of the API on this host")
    api_hosts: int = _setting(
        1, "serve", _whole(1, 1_000), "hosts of the API: a tenant's limit of calls is divided among them"
    )
    api_connections: int = _setting(
        10_000, "serve", _whole(1_000, 1_000_000), "connections to one process of the API; one more is refused"
    )
    api_connections_per_address: int = _setting(
        1_000, "serve", _whole(1, 1_000_000), "of them from one address, unless behind a proxy"
    )
    admin_listen: str = _setting("127.0.0.1", "admin", _listen, "address of the operators' API")
    admin_port: int | None = _setting(
        None, "admin", _whole(0, 65_535), "port of the operators' API, which is off without"
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "serve", _origin, "web page origin that may call the API", name="cors_origin", many=True
    )
    metrics_port: int = _setting(
        0, "engine", _whole(0, 65_535), "port of the engine's health and metrics, 0 for a free one"
    )
    allow_networks: tuple[str, ...] = _setting(
        (), "targets", _network, "network that jobs may call though it is not public", name="allow_network", many=True
    )
    allow_ports: tuple[int, ...] = _setting(
        (), "targets", _whole(1, 65_535), "further port that jobs may call", name="allow_port", many=True
    )
    origin_starts_per_s: int = _setting(
        1_000, "calls", _whole(1, 1_000_000), "calls a second to one public origin, of all tenants together"
    )
    origin_in_flight: int = _setting(200, "calls", _whole(1, 100_000), "calls of one public origin at the same time")
    contact: str | None = _setting(None, "calls", _contact, "who may be asked about calls, added to User-Agent")
    lease_ms: int = _setting(10_000, "engine", _whole(1_000, _HOUR_MS), "how long a silent worker keeps its partitions")
    heartbeat_ms: int = _setting(2_000, "engine", _whole(100, _HOUR_MS), "time between a worker's heartbeats")
    freeze_ms: int = _setting(30_000, "times", _whole(1_000, _HOUR_MS), "an edit reaches runs later than this")
    horizon_ms: int = _setting(30_000, "times", _whole(1_000, _HOUR_MS), "how far ahead runs are planned")
    missed_after_ms: int = _setting(
        300_000, "times", _whole(1_000, 24 * _HOUR_MS), "a time reached later than this is missed, not late"
    )
    retention_days: int = _setting(30, "times", _whole(1, 720), "days that finished runs are kept")
    history: str | None = _setting(
        None, "history", _one_of("mysql", "cassandra"), "where finished runs end up, fixed for a fleet's life"
    )
    cassandra: Contact | None = _setting(  # noqa: RUF009 - a field, like the others
        None, "history", _cassandra, "address of the Cassandra that keeps the history"
    )
    cassandra_sync_ms: int = _setting(
        10_000, "history", _whole(0, 600_000), "how long its nodes keep writes from their disks: commitlog_sync_period"
    )
    live_days: int = _setting(2, "history", _whole(1, 720), "days until runs leave MySQL for Cassandra")
    log_level: str = _setting(
        "info", "log", _one_of("debug", "info", "warning", "error"), "least severe events that are logged"
    )

    @property
    def mysql_days(self) -> int:
        """How old a day is when it leaves MySQL."""
        return self.live_days if self.history == "cassandra" else self.retention_days

    @property
    def wait_timeout_s(self) -> int:
        """A session that is silent for a worker's lease is ended, so that a stopped process frees what it locked."""
        return max(1, self.lease_ms // 1000)


FIELDS = tuple(
    Field(name=about.pop("name") or each.name, attribute=each.name, **about)
    for each in fields(Settings)
    for about in [dict[str, Any](each.metadata)]
)
GROUPS = frozenset(known.group for known in FIELDS)
