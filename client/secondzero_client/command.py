"""The command ``secondzero-worker module:worker``: a worker as a process of its own."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from secondzero_client.client import KEY_VARIABLE, URL_VARIABLE
from secondzero_client.errors import SecondZeroError
from secondzero_client.worker import Worker


def main(arguments: Sequence[str] | None = None) -> int:
    """0 after a stop by SIGTERM or SIGINT, 1 if the service refuses, 2 for wrong usage."""
    parser = _parser()
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    sys.path.insert(0, args.folder)
    worker = _find(parser, args.worker)
    if args.concurrency is not None:
        worker.concurrency = args.concurrency
    if args.grace is not None:
        worker.grace_s = args.grace
    worker.url = args.url or worker.url
    try:
        worker.run()
    except ValueError as error:
        parser.error(str(error))
    except SecondZeroError as error:
        print(f"secondzero-worker: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="secondzero-worker",
        description="Runs a worker until SIGTERM or Ctrl-C: what is under way may finish, the rest is given back; a"
        f" second signal does not wait. The API's address and key are those of {URL_VARIABLE} and {KEY_VARIABLE}.",
        allow_abbrev=False,
    )
    parser.add_argument("worker", metavar="module:worker", help="where the Worker is, such as reports:worker")
    parser.add_argument("--url", help=f"the API's address, instead of {URL_VARIABLE}")
    parser.add_argument("--concurrency", type=int, help="runs at the same time, instead of what the worker says")
    parser.add_argument("--grace", type=float, metavar="SECONDS", help="how long runs may go on after a stop")
    parser.add_argument("--folder", default=".", help="where the module is looked for first (default: here)")
    return parser


def _find(parser: argparse.ArgumentParser, text: str) -> Worker:
    module, colon, attribute = text.partition(":")
    if not module or not colon or not attribute:
        parser.error(f"{text!r} is not module:worker, for example reports:worker")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        parser.error(f"there is no module {module!r} here")
    except AttributeError:
        parser.error(f"{module} has no {attribute!r}")
    if not isinstance(found, Worker):
        parser.error(f"{text} is no Worker")
    return found


if __name__ == "__main__":
    sys.exit(main())
