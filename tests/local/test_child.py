"""A command of ours as a child: what is wrong with its start is said in one line."""

from dataclasses import replace

import pytest

from engine.config import Settings
from engine.errors import OperatorError
from engine.local.child import Child
from engine.local.listener import free_port, url_of


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "log").mkdir()
    return Settings(data=tmp_path)


def test_a_child_that_ends_at_its_start_is_told_with_its_last_line(settings):
    child = Child("engine", settings)
    child.start()
    with pytest.raises(OperatorError) as caught:
        child.wait_ready(url_of("127.0.0.1", free_port()))
    assert str(caught.value) == (
        "the engine ended with status 2: secondzero: --shard: give the address of each shard, the first one first"
        f" (see {child.log})"
    )


def test_the_starters_own_variables_do_not_reach_a_child(settings, monkeypatch):
    monkeypatch.setenv("SECONDZERO_PORT", "none")
    child = Child("api", replace(settings, port=1))
    child.start()
    with pytest.raises(OperatorError, match="ended with status 2: secondzero: --shard: give"):
        child.wait_ready(url_of("127.0.0.1", 1))
    assert "SECONDZERO_PORT" not in child.log.read_text()
