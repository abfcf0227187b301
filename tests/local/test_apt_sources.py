"""The machine's own mirror, as people's machines have it written down."""

import os
from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.local.apt_sources import machine_archive

DEBIAN = 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
UBUNTU = "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"

DEB822 = """\
# A comment before the first paragraph.
Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
# A comment within.
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
UBUNTU_SOURCES = """\
Types: deb deb-src
URIs: http://mirror.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: http://security.example/ubuntu/
Suites: noble-security
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
FOREIGN = """\
Types: deb
URIs: https://packages.example/git
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/git.asc
"""


def etc(folder: Path, release: str, sources: dict[str, str]) -> Path:
    (folder / "apt/sources.list.d").mkdir(parents=True)
    (folder / "os-release").write_text(release)
    for name, text in sources.items():
        (folder / "apt" / name).write_text(text)
    return folder


MAIN = "deb http://mirror.example/debian bookworm main\n"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SWITCHED_OFF = "Enabled: no\nTypes: deb\nURIs: http://old.example/debian\nSuites: bookworm\nComponents: main\n"


@pytest.mark.parametrize(
    "sources",
    [
        {"sources.list.d/debian.sources": DEB822},
        {"sources.list.d/a-git.sources": FOREIGN, "sources.list.d/debian.sources": DEB822},
        {"sources.list.d/a.sources": SWITCHED_OFF, "sources.list.d/b.sources": DEB822},
        {"sources.list": f"# deb http://old.example/debian bookworm main\n{MAIN}"},
        {"sources.list": "deb  http://mirror.example/debian\tbookworm  main contrib # a remark\n"},
        {"sources.list": MAIN.replace("deb ", f"deb [arch=amd64 signed-by={KEYRING}] ")},
        {"sources.list": f"deb http://security.example/debian-security bookworm-security main\n{MAIN}"},
        {"sources.list": f"deb cdrom:[Debian 12]/ bookworm main\n{MAIN}"},
        {"sources.list": MAIN.replace("bookworm", "sid")},
        {"sources.list.d/x.list": f"deb https://packages.example/sdk sdk-bookworm main\n{MAIN}"},
        {"sources.list.d/a.list.save": MAIN.replace("mirror", "old"), "sources.list.d/b.list": MAIN},
    ],
)
def test_debian_gets_sid_from_its_own_main_mirror_signed_by_debian(tmp_path: Path, sources: dict[str, str]) -> None:
    archive = machine_archive(etc(tmp_path, DEBIAN, sources))
    assert archive.lines() == [f"deb [signed-by={KEYRING}] http://mirror.example/debian sid main"]
    assert archive.label == f"debian-sid-{os.uname().machine}"


def test_ubuntu_gets_its_own_suite_with_updates(tmp_path: Path) -> None:
    archive = machine_archive(etc(tmp_path, UBUNTU, {"sources.list.d/ubuntu.sources": UBUNTU_SOURCES}))
    head = "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://mirror.example/ubuntu/"
    assert archive.lines() == [f"{head} noble main universe", f"{head} noble-updates main universe"]


def test_a_machine_without_a_mirror_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"no debian mirror for bookworm main in .*sources\.list"):
        machine_archive(etc(tmp_path, DEBIAN, {"sources.list.d/git.sources": FOREIGN}))


@pytest.mark.parametrize(("release", "named"), [("ID=fedora\n", "fedora"), ("", "of an unknown kind")])
def test_another_distribution_is_named(tmp_path: Path, release: str, named: str) -> None:
    with pytest.raises(OperatorError, match=f"this machine is {named}"):
        machine_archive(etc(tmp_path, release, {}))
