"""What the commands for operators share: the shards they talk to, and how they answer."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from engine.config import Settings
from engine.keys import Keys
from engine.local.folder import shards_of
from engine.rules.timestamps import format_time
from engine.settings import KEY_FILE, keys_of, load_settings, settings_arguments
from engine.store.shard import Shard

T = TypeVar("T")


def add_verb(
    verbs: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    """A verb of a command that talks to the shards and reports."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=description or help, allow_abbrev=False
    )
    settings_arguments(parser, {"shards", "secrets", "data"})
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(func=run)
    return parser


def with_shards(args: argparse.Namespace, act: Callable[[Sequence[Shard]], Awaitable[T]]) -> T:
    """Act on the shards that are given, else on those of the service which runs in the data folder."""

    async def run() -> T:
        settings = load_settings(args)
        keys = keys_here(settings)
        shards = [Shard(dsn, index, keys=keys) for index, dsn in enumerate(shards_of(settings))]
        try:
            return await act(shards)
        finally:
            for shard in shards:
                await shard.close()

    return asyncio.run(run())


def keys_here(settings: Settings) -> Keys:
    """The keys that are given, else those of what runs in the data folder."""
    given = settings.shards or settings.secrets_keys or settings.secrets_key_file
    return keys_of(settings) if given else Keys(file=settings.data / KEY_FILE)


def with_first(args: argparse.Namespace, act: Callable[[Shard], Awaitable[T]]) -> T:
    """Act on the first shard."""
    return with_shards(args, lambda shards: act(shards[0]))


def report(args: argparse.Namespace, document: Mapping[str, Any], lines: Iterable[str] | None = None) -> int:
    """The document for programs, the lines for people (absent: one for each field); returns the exit status."""
    if args.json:
        print(orjson.dumps(document).decode())
    else:
        print(*(lines if lines is not None else (f"{name}: {value}" for name, value in document.items())), sep="\n")
    return 0


def time_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)


def _printable(text: str) -> str:
    """Notes and the like are others' words: none of them moves the cursor, or turns the line around."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns as wide as they must be."""
    texts = [list(heads), *([("-" if cell is None else _printable(str(cell))) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
