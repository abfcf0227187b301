"""`secondzero brakes`: what operators have stopped, and who did; with what pulling and releasing share."""

from __future__ import annotations

import argparse
import getpass
import socket
from typing import Any

from engine.commands.administration import add_verb, report, table, time_or_none, with_first
from engine.rules.brakes import BrakeKind
from engine.rules.target_text import Refusal, read_target
from engine.settings import SettingsError
from engine.store.brakes import NOTE_CHARS_MAX, Brake, brakes_used

USES_MAX = 100
WHO_CHARS_MAX = 255


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    add_verb(
        subparsers,
        "brakes",
        run,
        help="what operators have stopped, and who did",
        description=f"The last {USES_MAX} uses of pause, resume, block and unblock.",
    )


def run(args: argparse.Namespace) -> int:
    uses = with_first(args, lambda first: brakes_used(first, USES_MAX))
    documents = [document(brake) for brake in uses]
    heads = ("stops", "what", "in force", "pulled", "by", "note", "released", "by")
    return report(args, {"brakes": documents}, table(heads, [tuple(each.values()) for each in documents]))


def document(brake: Brake) -> dict[str, Any]:
    """A brake as it is reported."""
    return {
        "stops": BrakeKind(brake.kind).name.lower(),
        "what": brake.what or None,
        "in_force": brake.released_at_ms is None,
        "pulled_at": time_or_none(brake.pulled_at_ms),
        "pulled_by": brake.pulled_by,
        "note": brake.note or None,
        "released_at": time_or_none(brake.released_at_ms),
        "released_by": brake.released_by,
    }


def add_whose(parser: argparse.ArgumentParser) -> None:
    """Everything, or one tenant."""
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--all", action="store_true", help="everything of the fleet")
    whose.add_argument("--tenant", metavar="NAME", help="one tenant's calls")


def add_who(parser: argparse.ArgumentParser) -> None:
    """Who uses the brake."""
    parser.add_argument("--who", metavar="NAME", help="who does this, for the record (you: user@host)")


def add_note(parser: argparse.ArgumentParser) -> None:
    """Why."""
    parser.add_argument("--note", default="", help="why, for the record")


def who_of(args: argparse.Namespace) -> str:
    """The name given, else the user and host."""
    who = str(args.who or this_user())
    if len(who) > WHO_CHARS_MAX:
        raise SettingsError([f"--who: at most {WHO_CHARS_MAX} characters"])
    return who


def this_user() -> str:
    """user@host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = "?"
    return f"{user}@{socket.gethostname()}"


def note_of(args: argparse.Namespace) -> str:
    """The note within its bound."""
    if len(args.note) > NOTE_CHARS_MAX:
        raise SettingsError([f"--note: at most {NOTE_CHARS_MAX} characters"])
    return str(args.note)


def origin_of(text: str) -> str:
    """An origin in its one spelling, port included; a path is refused, since a whole origin is blocked."""
    target = read_target(text)
    if isinstance(target, Refusal):
        raise SettingsError([f"ORIGIN: {target.detail}; example: https://example.com"])
    if target.path != "/":
        raise SettingsError([f"ORIGIN: only scheme, host and port, not {target.path!r}; example: {target.origin}"])
    return str(target.origin)
