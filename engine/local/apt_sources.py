"""The machine's own package mirror, read from its apt sources, so that a private download goes where the owner's goes.

Both forms are read: one-line (`sources.list`, `*.list`) and deb822 (`*.sources`). Of all entries the distribution's own
main archive is chosen: signed by its keyring, holding `main`, and not the security archive, which is only a part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Archive:
    """A package archive, as lines of a sources.list. `label` names it in the cache."""

    label: str
    uri: str
    suites: tuple[str, ...]
    components: str
    options: str

    def lines(self) -> list[str]:
        uri = re.sub("^file:", "copy:", self.uri)  # apt would leave the packages of a file: archive in their place
        return [f"deb [{self.options}] {uri} {suite} {self.components}" for suite in self.suites]


@dataclass(frozen=True, slots=True)
class _Entry:
    uris: list[str]
    suites: list[str]
    components: list[str]
    signed_by: str


def machine_archive(etc: Path = Path("/etc")) -> Archive:
    """Where this machine gets its packages: on Debian the suite `sid` (MySQL is in no other), on Ubuntu its own."""
    release = _os_release(etc / "os-release")
    name, codename = release.get("ID", "of an unknown kind"), release.get("VERSION_CODENAME", "sid")
    if name not in ("debian", "ubuntu"):
        raise OperatorError(f"packages can be fetched on Debian and Ubuntu only, and this machine is {name}")
    keyring, uri = _own_mirror(name, codename, etc / "apt")
    arch = os.uname().machine  # a cache in a shared home serves machines of several kinds
    if name == "debian":
        return Archive(f"debian-sid-{arch}", uri, ("sid",), "main", f"signed-by={keyring}")
    suites = (codename, f"{codename}-updates")
    return Archive(f"ubuntu-{codename}-{arch}", uri, suites, "main universe", f"signed-by={keyring}")


def _os_release(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in _text(path).splitlines() if "=" in line)
    return {key: value.strip("\"'") for key, _, value in pairs}


def _own_mirror(name: str, codename: str, apt: Path) -> tuple[str, str]:
    keyring = f"/usr/share/keyrings/{name}-archive-keyring.gpg"
    wanted = {codename, "sid", "unstable", "testing", "stable"}
    for entry in _entries(apt):
        ours = not entry.signed_by or f"{name}-archive-keyring" in entry.signed_by
        uris = [uri for uri in entry.uris if "security" not in uri and not uri.startswith("cdrom:")]
        if ours and uris and "main" in entry.components and wanted & set(entry.suites):
            return entry.signed_by or keyring, uris[0]
    raise OperatorError(f"no {name} mirror for {codename} main in {apt}/sources.list or {apt}/sources.list.d")


def _entries(apt: Path) -> Iterator[_Entry]:
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            yield from _deb822_entries(_text(path))
        elif path.suffix == ".list":
            yield from _one_line_entries(_text(path))


def _text(path: Path) -> str:
    """A file that is not there, or that holds another's password, says nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _deb822_entries(text: str) -> Iterator[_Entry]:
    uncommented = re.sub(r"(?m)^#.*\n?", "", text)
    for paragraph in re.split(r"\n\s*\n", uncommented):
        fields = {key.lower(): value for key, value in re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t]+.*)*)", paragraph)}
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").strip().lower() != "no":
            uris, suites, components = (fields.get(key, "").split() for key in ("uris", "suites", "components"))
            yield _Entry(uris, suites, components, fields.get("signed-by", "").strip())


def _one_line_entries(text: str) -> Iterator[_Entry]:
    for line in text.splitlines():
        found = re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line.strip())
        if found:
            options, uri, suite, components = found.groups()
            signed_by = re.search(r"signed-by=(\S+)", options or "")
            yield _Entry([uri], [suite], components.split(), signed_by[1] if signed_by else "")
