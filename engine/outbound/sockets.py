"""Room for sockets: the process's limit of open files, raised as far as it is needed and may be."""

from __future__ import annotations

import resource

from engine.errors import OperatorError

# Files that are no outbound connections: database connections, logs, pipes, the metrics listener.
OTHER_FILES = 500
# With fewer connections a peak to a few origins would already wait for itself.
CONNECTIONS_MIN = 1_000


def make_room(connections: int) -> int:
    """Raise the limit of open files for so many outbound connections; how many there is room for.

    OperatorError where that is less than CONNECTIONS_MIN.
    """
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    files = min(connections + OTHER_FILES, hard)
    if files < CONNECTIONS_MIN + OTHER_FILES:
        raise OperatorError(
            f"at least {CONNECTIONS_MIN + OTHER_FILES} open files are needed and {hard} are allowed: "
            "raise the hard limit (LimitNOFILE= of systemd, ulimit -Hn)"
        )
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return min(connections, max(soft, files) - OTHER_FILES)


def _number(limit: int) -> int:
    return 1 << 62 if limit == resource.RLIM_INFINITY else limit
