"""Compiled leaf modules: they compute, and import nothing of ours.

Each has an ABI number. Whoever changes what a module takes, returns or means raises the number there and here, so that
a checkout with an older build says so at once, instead of misbehaving somewhere later.
"""

from collections.abc import Mapping
from importlib import import_module

ABI = {"batch": 1, "cron": 2, "wheel": 1, "wire": 1}


def require(abi: Mapping[str, int]) -> None:
    """ImportError, with what to do, unless each module is built with its number."""
    for name, expected in abi.items():
        try:
            built = import_module(f"{__name__}.{name}").ABI
        except ModuleNotFoundError as error:
            raise ImportError(f"{__name__}.{name} is not built: run make build") from error
        if built != expected:
            raise ImportError(f"{__name__}.{name} is built with ABI {built}, not {expected}: run make build")


require(ABI)
