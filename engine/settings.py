"""Where settings come from: flags, then SECONDZERO_* variables, then a TOML file; every problem is found at once.

Each setting has one name, spelled three ways: ``--lease-ms``, ``SECONDZERO_LEASE_MS`` and ``lease_ms`` in the file. One
that may be given several times is a repeated flag, a variable with its values parted by spaces or commas, a list in
the file. The first of the three that names a setting decides; they are never merged.
"""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import (
    FIELDS,
    NEW_FLEET_HISTORY,
    NEW_FLEET_PARTITIONS,
    NEW_FLEET_SHARDS,
    PREFIX,
    Dsn,
    Field,
    Secret,
    Settings,
    yes_or_no,
)
from engine.contact import Contact
from engine.errors import OperatorError
from engine.keys import Keys

# What the tenants' own commands read: no settings of ours, but ours by name.
TENANT_VARIABLES = ("SECONDZERO_URL", "SECONDZERO_API_KEY")

CASSANDRA = "cassandra"

CONFIG_VARIABLE = PREFIX + "CONFIG"

KEY_FILE = "secrets.key"

# One heartbeat may come late and the lease still stands.
LEASE_HEARTBEATS_MIN = 2


class SettingsError(OperatorError):
    """Settings that cannot be used: one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(problems))


class Found(NamedTuple):
    """What was found: the settings (None if there are problems), where each came from, and every problem."""

    settings: Settings | None
    sources: Mapping[str, str]
    problems: Sequence[str]


def passwords_in(words: Sequence[str]) -> list[str]:
    """The passwords that stand in a command line, as they are written there."""
    found = [re.search(r"mysql://[^:@/\s]*:([^@\s]+)@", word) for word in words]
    return [password[1] for password in found if password]


def settings_arguments(parser: argparse.ArgumentParser, groups: Collection[str]) -> None:
    """Add ``--config`` and the flags of these groups of FIELDS to a command."""
    options = parser.add_argument_group("settings", f"also as {PREFIX}* variables or in a TOML file")
    options.add_argument("--config", metavar="FILE", help="TOML file with settings")
    for known in FIELDS:
        if known.group in groups and not known.secret:
            action = "append" if known.many else "store"
            more: dict[str, Any] = {"nargs": "?", "const": "yes"} if known.read is yes_or_no else {}
            options.add_argument(
                known.flag, dest=known.attribute, action=action, metavar="…", help=_help(known), **more
            )
    parser.set_defaults(setting_groups=frozenset(groups))


def load_settings(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a command that called ``settings_arguments``; SettingsError with every problem."""
    found = find_settings(args, environ)
    if found.settings is None:
        raise SettingsError(found.problems)
    return found.settings


def find_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Found:
    """The same without raising, for those who want to tell where each value came from."""
    problems = _unknown_variables(environ)
    file_name = args.config or environ.get(CONFIG_VARIABLE)
    document = _read_file(Path(file_name), problems) if file_name else {}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for known in FIELDS:
        if known.group in args.setting_groups:
            _take(known, _given(known, args, environ, document, file_name), values, sources, problems)
    settings = _with_passwords(Settings(**values), problems)
    problems += _contradictions(settings)
    if "serve" in args.setting_groups:
        problems += _open_doors(settings)
    return Found(None if problems else settings, sources, problems)


def keys_of(settings: Settings) -> Keys:
    """The keys that secrets are encrypted with: those given, else this user's own, made when first needed.

    They belong to the fleet: every host needs the same, and says so if it has others.
    """
    if settings.secrets_keys:
        return Keys([key.value for key in settings.secrets_keys])
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "secondzero" / KEY_FILE
    return Keys(file=settings.secrets_key_file or own, make=settings.secrets_key_file is None)


def asked_history(settings: Settings) -> str | None:
    """Where the history is by what was said; None if nothing was."""
    return settings.history or (CASSANDRA if settings.cassandra else None)


def with_history(settings: Settings, created: str | None) -> Settings:
    """The settings with the history that the fleet was created with; None where no shard has said. OperatorError where
    they ask for another, or lack what it needs."""
    asked = asked_history(settings)
    if created is not None and asked not in (None, created):
        raise OperatorError(f"created with history {created}, now started with {asked}; it is fixed for life")
    history = created or asked or NEW_FLEET_HISTORY
    if history == CASSANDRA and settings.cassandra is None:
        raise OperatorError("this fleet's history is in Cassandra: give its address with --cassandra cassandra://…")
    return replace(settings, history=history)


def environment(settings: Settings) -> dict[str, str]:
    """The settings as variables, for a child process: its arguments show in ``ps``, its variables do not."""
    given = {known.variable: getattr(settings, known.attribute) for known in FIELDS}
    return {variable: _text(value) for variable, value in given.items() if value is not None}


def shown(settings: Settings) -> dict[str, Any]:
    """The settings by name as plain values, addresses without passwords: for people and JSON."""
    return {known.name: _plain(getattr(settings, known.attribute)) for known in FIELDS}


def _help(known: Field) -> str:
    of_new_fleet: dict[str, object] = {"shards": NEW_FLEET_SHARDS, "partitions": NEW_FLEET_PARTITIONS}
    of_new_fleet["history"] = NEW_FLEET_HISTORY
    default = of_new_fleet.get(known.name)
    default = default or getattr(Settings(), known.attribute)
    return f"{known.help}, repeated" if known.many else f"{known.help} ({default})"


def _given(
    known: Field,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    document: Mapping[str, Any],
    file_name: str | None,
) -> tuple[object, str] | None:
    """What was said about a setting and where, by the first of the three that says anything."""
    flag = getattr(args, known.attribute, None)
    if flag is not None:
        return flag, known.flag
    if known.variable in environ:
        text = environ[known.variable]
        return (re.split(r"[\s,]+", text.strip()) if text.strip() else []) if known.many else text, known.variable
    if known.name in document:
        return document[known.name], f"{file_name}: {known.name}"
    return None


def _take(
    known: Field,
    given: tuple[object, str] | None,
    values: dict[str, Any],
    sources: dict[str, str],
    problems: list[str],
) -> None:
    """Read what was given; a list is read to its end, whatever is wrong with one member."""
    if given is None:
        return
    value, source = given
    sources[known.name] = source
    if known.many and not isinstance(value, list):
        what = "" if known.secret else f", not {value!r}"
        problems.append(f"{source}: must be a list{what}")
        return
    good = []
    for item in value if isinstance(value, list) and known.many else [value]:
        try:
            good.append(known.read(item))
        except ValueError as error:
            problems.append(f"{source}: {error}")
    if good:
        values[known.attribute] = tuple(good) if known.many else good[0]


def _read_file(path: Path, problems: list[str]) -> Mapping[str, Any]:
    """The file's settings; what is wrong with the file itself is added to the problems."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not TOML: {error}")
        return {}
    names = [known.name for known in FIELDS]
    problems += [f"{path}: unknown setting {name!r}{_nearest(name, names)}" for name in document if name not in names]
    return document


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    names = [known.variable for known in FIELDS] + [CONFIG_VARIABLE, *TENANT_VARIABLES]
    ours = sorted(name for name in environ if name.startswith(PREFIX))
    return [f"{name}: unknown setting{_nearest(name, names)}" for name in ours if name not in names]


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _with_passwords(settings: Settings, problems: list[str]) -> Settings:
    """Shards without a password get theirs from the file: its one line, or each its own."""
    if settings.shard_password_file is None:
        return settings
    try:
        lines = settings.shard_password_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"shard_password_file {settings.shard_password_file}: cannot be read: {error}")
        return settings
    if len(lines) not in (1, len(settings.shards)):
        problems.append(f"shard_password_file: has {len(lines)} lines, not 1 or one for each shard")
        return settings
    passwords = lines * len(settings.shards) if len(lines) == 1 else lines
    shards = [
        dsn if dsn.password else replace(dsn, password=password)
        for dsn, password in zip(settings.shards, passwords, strict=True)
    ]
    return replace(settings, shards=tuple(shards))


def _contradictions(settings: Settings) -> list[str]:
    """Settings that are right one by one and wrong together."""
    problems = []
    if settings.secrets_keys and settings.secrets_key_file:
        problems.append("secrets_key and secrets_key_file: give one of them")
    if settings.lease_ms <= LEASE_HEARTBEATS_MIN * settings.heartbeat_ms:
        problems.append(
            f"lease_ms {settings.lease_ms} must be more than {LEASE_HEARTBEATS_MIN} times heartbeat_ms"
            f" {settings.heartbeat_ms}: a worker would lose its lease by one late heartbeat"
        )
    addresses = [str(dsn) for dsn in settings.shards]
    problems += [
        f"shard: {address} is given twice" for address in sorted(set(addresses)) if addresses.count(address) > 1
    ]
    if settings.keeper_shards and len(settings.keeper_shards) != len(settings.shards):
        problems.append(f"keeper_shard: {len(settings.keeper_shards)} addresses for {len(settings.shards)} shards")
    shard_count = len(settings.shards) or settings.shard_count or NEW_FLEET_SHARDS
    if settings.shard_count not in (None, shard_count):
        problems.append(f"shards {settings.shard_count} contradicts the number of addresses given, {shard_count}")
    partition_count = settings.partition_count or NEW_FLEET_PARTITIONS
    if partition_count < shard_count:
        problems.append(f"partitions {partition_count} must not be fewer than the shards, {shard_count}")
    return problems + _history_problems(settings)



def _history_problems(settings: Settings) -> list[str]:
    problems = []
    if settings.cassandra is not None and settings.history not in (None, CASSANDRA):
        problems.append(f"cassandra: given, but history is {settings.history}; leave one of them out")
    if asked_history(settings) == CASSANDRA and settings.live_days >= settings.retention_days:
        problems.append(
            f"live_days {settings.live_days} must be fewer than retention_days {settings.retention_days}: what has left"
            " MySQL is in Cassandra until then"
        )
    return problems


def _open_doors(settings: Settings) -> list[str]:
    """Keys of tenants travel in every call: beyond this machine only under TLS."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        return ["tls_cert and tls_key: each needs the other"]
    if settings.tls_cert is not None or settings.behind_proxy:
        return []
    return [
        f"{name} {address}: beyond this machine the API needs --tls-cert and --tls-key, or --behind-proxy"
        for name, address in (("listen", settings.listen), ("admin_listen", settings.admin_listen))
        if not (address.startswith("fd://") or ipaddress.ip_address(address).is_loopback)
    ]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(_text(item) for item in value)
    return value.text() if isinstance(value, Dsn | Secret | Contact) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int) else str(value)
