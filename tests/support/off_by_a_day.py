"""The worker of the test functions, on a host whose wall clock is a day ahead."""

import time

_true = time.time
time.time = lambda: _true() + 86_400

from tests.support.functions import worker  # noqa: E402 - with that clock

__all__ = ["worker"]
