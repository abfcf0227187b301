"""The Cassandra to start: its jars, fetched once into the user's cache folder, and the Java that runs them.

    <cache>/cassandra/<version>/        the jars: put there by one rename
    <cache>/cassandra/<version>.part/   a download under way, or left by one that was killed: begun anew

Maven fetches them where it is there, else Ivy, which is one jar of the distribution's packages.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from engine.errors import OperatorError
from engine.local import apt
from engine.local.apt import Say, only_one, user_cache
from engine.local.java import DOWNLOAD_S_MAX, Java, find_java, run_tool

GROUP, ARTIFACT, VERSION = "org.apache.cassandra", "cassandra-all", "5.0.9"
# Pinned: an unpinned plugin depends on the Maven in use.
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# Natives of other systems are never loaded here.
OTHER_SYSTEMS = ("*-osx-*.jar", "*-windows-*.jar", "*riscv64*.jar", "*-sources.jar", "*-javadoc.jar")
AGENT = "jamm-*.jar"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>cassandra</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


class CassandraProgram(NamedTuple):
    """The Java, and the folder of jars."""

    java: Java
    lib: Path

    @property
    def agent(self) -> Path:
        """What measures the size of objects; it is loaded before everything else."""
        return next(iter(sorted(self.lib.glob(AGENT))))


def find_cassandra(say: Say, *, cache: Path | None = None) -> CassandraProgram:
    """Fetched on first use. OperatorError in one line, with ways on, where it cannot be had."""
    try:
        java = find_java(say, cache=cache)
        return CassandraProgram(java, fetch_jars(java, say, cache=cache))
    except OperatorError as error:
        raise OperatorError(
            f"no Cassandra could be made ready ({error}). Ways on: give one with --cassandra cassandra://HOST/KEYSPACE;"
            " install Java 17 and Maven; make the package registries reachable; or keep the history in MySQL"
            " (--history mysql)"
        ) from error


def fetch_jars(java: Java, say: Say, *, cache: Path | None = None) -> Path:
    """The folder with the jars; one process downloads, others wait for it."""
    folder = (cache or user_cache()) / "cassandra" / VERSION
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder.with_name(folder.name + ".lock"), say):
            if not folder.is_dir():
                _download(java, folder, say)
    except OSError as error:
        raise OperatorError(f"cannot keep Cassandra in {folder.parent}: {error.strerror or error}") from error
    return folder


def _download(java: Java, folder: Path, say: Say) -> None:
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    lib = part / "lib"
    lib.mkdir(parents=True)
    say(f"getting Cassandra {VERSION}, about 70 MB (once for all checkouts)")
    if shutil.which("mvn"):
        with_maven(java, lib)
    else:
        say("there is no mvn on PATH: with Ivy it takes some minutes")
        with_ivy(java, lib, say)
    for pattern in OTHER_SYSTEMS:
        for jar in lib.glob(pattern):
            jar.unlink()
    if not list(lib.glob(f"{ARTIFACT}-*.jar")) or not list(lib.glob(AGENT)):
        raise OperatorError(f"the download of Cassandra {VERSION} is not whole: try again")
    os.sync()  # or a power cut could leave the finished name with unwritten files behind it
    lib.rename(folder)
    shutil.rmtree(part)


def with_maven(java: Java, lib: Path) -> None:
    """By a project that has nothing but the one dependency."""
    pom = lib.parent / "pom.xml"
    pom.write_text(_POM.format(group=escape(GROUP), artifact=escape(ARTIFACT), version=escape(VERSION)))
    environment = {**os.environ, "JAVA_HOME": str(java.home)}
    if java.trust:
        environment["MAVEN_OPTS"] = " ".join([os.environ.get("MAVEN_OPTS", ""), *java.trust]).strip()
    command = ["mvn", "-B", "-q", "-f", str(pom), PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
    run_tool(command, DOWNLOAD_S_MAX, environment)


def with_ivy(java: Java, lib: Path, say: Say, *, cache: Path | None = None) -> None:
    """Ivy's jar is unpacked, not installed. It asks for one file after the other."""
    jar = apt.fetch(["ivy"], cache=cache, say=say) / "usr/share/java/ivy.jar"
    pattern = f"{lib}/[artifact]-[revision](-[classifier]).[ext]"
    command = [java.command, *java.trust, "-jar", str(jar), "-cache", str(lib.parent / "ivy"), "-confs", "default"]
    # Half of the jars are bundles of OSGi by their type.
    command += ["-types", "jar", "bundle", "-dependency", GROUP, ARTIFACT, VERSION, "-retrieve", pattern]
    run_tool(command, DOWNLOAD_S_MAX)
