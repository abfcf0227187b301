"""Private packages, from an archive that the test makes: whole or not at all, whatever is killed in between."""

from __future__ import annotations

import hashlib
import http.server
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.local import apt
from engine.local.apt import fetch, loader_command
from engine.local.apt_sources import Archive

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt")

# Not to be compressed away: the download must be long enough to be cut in the middle.
PAYLOAD_BYTES = 4 << 20
TRUSTED = "trusted=yes"
FETCHER = """
import sys
from pathlib import Path
from engine.local.apt import fetch
from engine.local.apt_sources import Archive
fetch(["tool"], cache=Path(sys.argv[1]), archive=Archive("test", sys.argv[2], ("own",), "main", "trusted=yes"))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with `tool`, which needs `library`, and with `numbered-8.0` and `numbered-8.10`."""
    folder = tmp_path_factory.mktemp("archive")
    packages = [
        package(folder, "library", "", "data/library"),
        package(folder, "tool", "Depends: library\n", "bin/tool"),
        package(folder, "numbered-8.0", "", "bin/old"),
        package(folder, "numbered-8.10", "", "bin/new"),
    ]
    index = folder / "dists/own/main" / f"binary-{architecture()}"
    index.mkdir(parents=True)
    (index / "Packages").write_text("\n".join(packages))
    listed = [sized(index / "Packages", folder / "dists/own")]
    release = (
        f"Suite: own\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nArchitectures: {architecture()}\nComponents: main\nSHA256:\n"
        + "".join(listed)
    )
    (folder / "dists/own/Release").write_text(release)
    return folder


def architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def package(folder: Path, name: str, extra: str, file: str) -> str:
    """Build one; returns its paragraph of the index."""
    tree = folder / "build" / name
    content = tree / "opt" / file
    content.parent.mkdir(parents=True)
    seed = hashlib.shake_256(name.encode())
    content.write_bytes(seed.digest(PAYLOAD_BYTES if name == "library" else 100))
    (tree / "DEBIAN").mkdir()
    about = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example>\n{extra}Description: test\n"
    (tree / "DEBIAN/control").write_text(about)
    built = folder / f"{name}.deb"
    subprocess.run(["dpkg-deb", "--build", tree, built], check=True, capture_output=True)
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    return about + f"Filename: {name}.deb\nSize: {built.stat().st_size}\nSHA256: {digest}\n"


def sized(path: Path, base: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f" {digest} {path.stat().st_size} {path.relative_to(base)}\n"


@contextmanager
def web(folder: Path, stall_in: str = "") -> Iterator[tuple[str, threading.Event]]:
    """The archive over HTTP; a file whose name holds `stall_in` stops half-way, and the event tells."""
    stalled, ended = threading.Event(), threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))

        def copyfile(self, source, outputfile) -> None:
            if not (stall_in and stall_in in self.path):
                super().copyfile(source, outputfile)
                return
            outputfile.write(source.read(PAYLOAD_BYTES // 2))
            outputfile.flush()
            stalled.set()
            ended.wait()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", stalled
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def archive(uri: str, options: str = TRUSTED) -> Archive:
    return Archive("test", uri, ("own",), "main", options)


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_packages_come_with_all_they_need_and_nothing_else_is_left(served: Path, tmp_path: Path) -> None:
    said: list[str] = []
    root = fetch(["tool"], cache=tmp_path, archive=archive(f"file:{served}"), say=said.append)
    assert files(root) == ["library", "tool"]
    assert sorted(path.name for path in root.parent.iterdir()) == ["tool", "tool.lock"]
    assert any("unpacking 2 packages" in line for line in said)


def test_what_stands_is_not_fetched_again(served: Path, tmp_path: Path) -> None:
    root = fetch(["tool"], cache=tmp_path, archive=archive(f"file:{served}"), say=print)
    assert fetch(["tool"], cache=tmp_path, archive=archive("http://127.0.0.1:1"), say=pytest.fail) == root


def test_a_name_that_the_archive_numbers_is_found_by_its_newest_number(served: Path, tmp_path: Path) -> None:
    root = fetch(["numbered"], cache=tmp_path, archive=archive(f"file:{served}"))
    assert files(root) == ["new"]


def test_a_download_killed_half_way_is_finished_by_the_next(served: Path, tmp_path: Path) -> None:
    with web(served, stall_in="library") as (uri, stalled):
        with subprocess.Popen(
            [sys.executable, "-c", FETCHER, str(tmp_path), uri], stderr=subprocess.DEVNULL
        ) as fetcher:
            assert stalled.wait(20)
            fetcher.send_signal(signal.SIGKILL)
        assert not (tmp_path / "packages/test/tool").exists()
        assert (tmp_path / "packages/test/tool.part").is_dir()
    with web(served) as (uri, _):
        assert files(fetch(["tool"], cache=tmp_path, archive=archive(uri))) == ["library", "tool"]


def test_an_unpacking_killed_half_way_is_done_again(served: Path, tmp_path: Path) -> None:
    left = tmp_path / "packages/test/tool.part/root/opt/bin"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    assert files(fetch(["tool"], cache=tmp_path, archive=archive(f"file:{served}"))) == ["library", "tool"]


def test_a_package_damaged_on_disk_is_brought_again(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web(served) as (uri, _):
        unpack = apt._unpack

        def damaging(archives: list[Path], *rest: object) -> None:
            archives[0].write_bytes(b"!" * archives[0].stat().st_size)
            unpack(archives, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(apt, "_unpack", damaging)
            with pytest.raises(OperatorError, match="dpkg-deb failed"):
                fetch(["tool"], cache=tmp_path, archive=archive(uri))
        assert files(fetch(["tool"], cache=tmp_path, archive=archive(uri))) == ["library", "tool"]


def test_a_package_of_an_older_version_left_by_a_killed_download_is_not_unpacked(served: Path, tmp_path: Path) -> None:
    archives = tmp_path / "packages/test/tool.part/apt/archives"
    archives.mkdir(parents=True)
    shutil.copy(served / "numbered-8.0.deb", archives / "tool_0_all.deb")
    assert files(fetch(["tool"], cache=tmp_path, archive=archive(f"file:{served}"))) == ["library", "tool"]


def test_two_who_want_the_same_packages_fetch_them_once(served: Path, tmp_path: Path) -> None:
    with web(served) as (uri, _):
        command = [sys.executable, "-c", FETCHER, str(tmp_path), uri]
        both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = "".join(each.communicate()[1] for each in both)
    assert [each.returncode for each in both] == [0, 0]
    assert said.count("unpacking") == 1


def test_an_archive_without_a_good_signature_is_refused(served: Path, tmp_path: Path) -> None:
    unsigned = archive(f"file:{served}", "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg")
    with pytest.raises(OperatorError, match=r"apt-get failed: .*not signed") as caught:
        fetch(["tool"], cache=tmp_path, archive=unsigned)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "uri", "said"),
    [
        (["nonesuch"], None, "nonesuch"),
        (["tool"], "http://127.0.0.1:1", "apt-get failed: .*127.0.0.1"),
        (["tool"], "file:/nonesuch", "apt-get failed: .*nonesuch"),
    ],
)
def test_what_fails_is_told_in_one_line_of_apts_own(
    served: Path, tmp_path: Path, names: list[str], uri: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "_CONFIG", apt._CONFIG.replace('Retries "3"', 'Retries "0"'))
    with pytest.raises(OperatorError, match=said) as caught:
        fetch(names, cache=tmp_path, archive=archive(uri or f"file:{served}"))
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match=r"cannot keep packages in .*: Not a directory"):
        fetch(["tool"], cache=tmp_path / "file", archive=archive("file:/nonesuch"))


@pytest.mark.parametrize(
    "loader", ["usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"]
)
def test_a_program_is_started_through_the_loader_and_the_libraries_of_its_root(tmp_path: Path, loader: str) -> None:
    """The second form is that of releases before the folders of /usr were merged."""
    (tmp_path / loader).parent.mkdir(parents=True)
    (tmp_path / loader).write_text("")
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True, exist_ok=True)
    command = loader_command(tmp_path, "usr/sbin/mysqld")
    assert command[0] == str(tmp_path / loader)
    assert str(tmp_path / loader.rpartition("/")[0]) in command[2].split(":")
    assert command[3] == str(tmp_path / "usr/sbin/mysqld")


def test_a_root_without_a_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="holds no program loader"):
        loader_command(tmp_path, "usr/sbin/mysqld")
