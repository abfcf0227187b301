"""The keys of secrets: what is no key, what is not readable, and a file that changes while it is used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.keys import KeyMissing, Keys, add_key, make_key_file, new_key


def file_with(path: Path, *texts: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    path.chmod(0o600)
    return path


def test_p9_what_is_sealed_is_opened_and_belongs_to_one_place() -> None:
    keys = Keys([new_key()])
    sealed = keys.seal(b"hunter2", b"here")
    assert b"hunter2" not in sealed.encode()
    assert keys.open(sealed, b"here") == b"hunter2"
    assert keys.seal(b"hunter2", b"here") != sealed, "equal secrets do not look alike"
    with pytest.raises(ValueError, match="moved from elsewhere"):
        keys.open(sealed, b"there")
    with pytest.raises(ValueError, match="was changed"):
        keys.open(sealed._replace(data=sealed.data[:-1] + b"x"), b"here")


def test_p9_the_first_key_seals_and_all_open() -> None:
    old, new = new_key(), new_key()
    sealed = Keys([old]).seal(b"a", b"")
    both = Keys([new, old])
    assert both.open(sealed, b"") == b"a"
    assert both.seal(b"a", b"").key_id == both.current_id == Keys([new]).current_id
    with pytest.raises(KeyMissing, match=f"key {sealed.key_id}, which is not in SECONDZERO_SECRETS_KEY"):
        Keys([new]).open(sealed, b"")


def test_p9_a_file_that_is_replaced_is_read_again_when_it_matters(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "secrets.key"
    here, there = Keys(file=file, make=True), Keys(file=file)
    sealed = here.seal(b"a", b"")
    assert file.stat().st_mode & 0o777 == 0o600
    assert there.open(sealed, b"") == b"a"
    add_key(file)
    fresh = here.seal(b"b", b"")
    assert fresh.key_id != sealed.key_id
    assert there.open(fresh, b"") == b"b"
    assert there.open(sealed, b"") == b"a"


def test_of_many_that_make_the_file_at_once_one_does(tmp_path: Path) -> None:
    file = tmp_path / "secrets.key"
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(make_key_file(file))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(made) == 1
    assert len(Keys(file=file).ids) == 1
    assert os.listdir(tmp_path) == ["secrets.key"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hunter2", "key 1: not a key"),
        ("szk_hunter2", "key 1: not a key"),
        (new_key()[:-4], "key 1: not a key"),
        ("# nothing", "no key in it"),
    ],
)
def test_p9_a_file_without_a_key_is_refused_without_showing_it(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem) as caught:
        assert Keys(file=file_with(tmp_path / "keys", text)).current_id
    assert text not in str(caught.value)


def test_p9_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    file = file_with(tmp_path / "keys", new_key())
    file.chmod(0o644)
    with pytest.raises(OperatorError, match="everybody on this machine can read it"):
        Keys(file=file).seal(b"a", b"")


def test_p9_without_a_key_nothing_is_stored_plain() -> None:
    with pytest.raises(OperatorError, match="there is no key"):
        Keys().seal(b"a", b"")
    with pytest.raises(OperatorError, match="cannot be read"):
        Keys(file=Path("/nowhere/keys")).seal(b"a", b"")
