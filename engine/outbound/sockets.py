"""Room for sockets: the process's limit of open files, raised and checked at start."""

from __future__ import annotations

import resource

from engine.errors import OperatorError

# Files that are no outbound connections: database connections, logs, pipes, the metrics listener.
OTHER_FILES = 500


def make_room(connections: int) -> None:
    """Raise the limit of open files to hold so many outbound connections; OperatorError where it may not be raised."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise OperatorError(
                f"{wanted} open files are needed and at most {hard} allowed: raise the limit (LimitNOFILE=, ulimit -Hn)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
