"""The command line: finds the command and turns what it raises into an exit status."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from engine.errors import CallerError, OperatorError, StoreUnavailable
from engine.process import hide_argument
from engine.settings import SettingsError, passwords_in

COMMANDS = (
    *("up", "migrate", "grants", "engine", "api", "tenant", "key", "keys"),
    *("pause", "resume", "block", "unblock", "brakes"),
    *("jobs", "runs", "dead-letters"),
    *("check", "status", "audit", "cron", "bench"),
)
"""Modules of engine.commands, in the order `--help` lists them. Each has `add_parser(subparsers)`, which sets
`func`, and `run(args)`, which returns the exit status."""

_OTHER_SCHEMA = frozenset({1054, 1142, 1146})
_MIGRATE = (
    "the schema is not that of this release: run secondzero migrate (and give the accounts their rights again:"
    " secondzero grants)"
)

EXIT_FAILED, EXIT_WRONG, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status: 0 done, 1 failed (one line on standard error), 2 wrong usage or
    settings (one line for each problem)."""
    words = sys.argv[1:] if argv is None else argv
    for password in passwords_in(words) if argv is None else ():
        # The first moment cannot be helped: a file or a variable is never seen.
        hide_argument(password)
        print(
            "secondzero: a password on a command line can be seen: use SECONDZERO_SHARD, --config or"
            " --shard-password-file",
            file=sys.stderr,
        )
    args = build_parser(words).parse_args(words)
    try:
        status = int(args.func(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader went away. What is still buffered must go nowhere, or Python complains about it on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except SettingsError as error:
        return fail(EXIT_WRONG, *error.problems)
    except CallerError as error:
        return fail(EXIT_FAILED, *(str(fault) for fault in error.faults))
    except (OperatorError, StoreUnavailable) as error:
        return fail(EXIT_FAILED, *str(error).splitlines())
    except Exception as error:
        # No table, no column, no right to it: asked here, so that no command needs to.
        if type(error).__module__.startswith("asyncmy") and error.args[:1] and error.args[0] in _OTHER_SCHEMA:
            return fail(EXIT_WRONG, f"{error.args[1]}: {_MIGRATE}")
        raise
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def fail(status: int, *lines: str) -> int:
    for line in lines:
        print(f"secondzero: {line}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Tells wrong usage in one line; the whole usage is behind `--help`."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_WRONG, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Knows the command that is asked for, or all of them: what the others need is not loaded for nothing."""
    parser = _Parser(prog="secondzero", description="At and cron as a service.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        import_module(f"engine.commands.{name.replace('-', '_')}").add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
