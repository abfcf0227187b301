"""The limit of open files, set in a child process so that the tests keep theirs."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from engine.outbound.sockets import OTHER_FILES, make_room
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
make_room(connections)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES)
"""


def run(*limits):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, limits)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("soft", "connections", "room"), [(256, 1000, 1000), (1500, 1000, 1000), (2000, 1000, 1500)])
def test_the_limit_is_raised_as_far_as_needed(soft, connections, room):
    assert run(soft, 2000, connections).stdout.strip() == str(room)


def test_a_limit_that_cannot_be_raised_is_the_operators():
    said = run(256, 1499, 1000).stderr
    assert "OperatorError: 1500 open files are needed and at most 1499 allowed" in said
