"""The limit of open files, set in a child process so that the tests keep theirs."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from engine.outbound.sockets import make_room
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(make_room(connections), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def run(*limits):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, limits)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "room", "limit"),
    [
        (256, 4000, 2000, 2000, 2500),
        (3000, 4000, 2000, 2000, 3000),
        (256, 2000, 20_000, 1500, 2000),
        (256, 1500, 20_000, 1000, 1500),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(soft, hard, connections, room, limit):
    assert run(soft, hard, connections).stdout.split() == [str(room), str(limit)]


def test_a_limit_that_leaves_too_little_is_the_operators_to_raise():
    assert "OperatorError: at least 1500 open files are needed and 1499 are allowed" in run(256, 1499, 20_000).stderr
