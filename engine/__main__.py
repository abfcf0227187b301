"""The command line: finds the command and turns what it raises into an exit status."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from engine.errors import OperatorError, StoreUnavailable
from engine.settings import SettingsError

COMMANDS = ("migrate", "check", "cron")
"""Modules of engine.commands, in the order `--help` lists them. Each has `add_parser(subparsers)`, which sets
`func`, and `run(args)`, which returns the exit status."""

EXIT_FAILED, EXIT_WRONG, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status: 0 done, 1 failed (one line on standard error), 2 wrong usage or
    settings (one line for each problem)."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.func(args))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away: nothing more can be said, and no traceback may be
        return EXIT_FAILED
    except SettingsError as error:
        return fail(EXIT_WRONG, *error.problems)
    except (OperatorError, StoreUnavailable) as error:
        return fail(EXIT_FAILED, *str(error).splitlines())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def fail(status: int, *lines: str) -> int:
    for line in lines:
        print(f"secondzero: {line}", file=sys.stderr)
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="secondzero", description="At and cron as a service.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f"engine.commands.{name}").add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
