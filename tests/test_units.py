"""The systemd units: nothing in them that the product or systemd does not know, and no door left open."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.__main__ import COMMANDS
from engine.config import FIELDS
from engine.node import DRAIN_MS_MAX

FOLDER = Path(__file__).parent.parent / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
PROGRAM = "/opt/secondzero/.venv/bin/secondzero"
# Of 100; a unit without any sandbox has 96.
EXPOSURE_MAX = 20
CLOSED = {
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectProc": "invisible",
    "MemoryDenyWriteExecute": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")


def settings_of(unit):
    """Every setting with all of its values, in order."""
    found = {}
    for line in unit.read_text().splitlines():
        assert not line or line[0] in "#[" or "=" in line, line
        if line and line[0] not in "#[":
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(params=UNITS, ids=lambda unit: unit.stem)
def unit(request):
    return request.param


def test_there_is_a_unit_for_each_part_that_stays_running():
    assert [unit.stem for unit in UNITS] == ["secondzero-api", "secondzero-engine"]


def test_p9_a_unit_runs_as_a_user_of_its_own_in_a_closed_room(unit):
    settings = settings_of(unit)
    (user,) = settings["User"]
    assert re.search(rf"^u {user} ", (FOLDER / "secondzero.sysusers.conf").read_text(), re.MULTILINE)
    assert {name: settings[name] for name in CLOSED} == {name: [value] for name, value in CLOSED.items()}
    assert settings["SystemCallFilter"] == ["@system-service", "~@privileged @keyring @memlock"]


def test_a_unit_starts_a_command_that_there_is_with_settings_that_there_are(unit):
    settings = settings_of(unit)
    (start,) = settings["ExecStart"]
    program, command = start.split()
    assert program == PROGRAM
    assert command in COMMANDS
    assert unit.stem == f"secondzero-{command}"
    assert settings["EnvironmentFile"] == [f"/etc/secondzero/{command}.env"]
    known = {field.variable for field in FIELDS}
    given = {assignment.partition("=")[0] for line in settings.get("Environment", []) for assignment in line.split()}
    assert given <= known


def test_no_secret_stands_in_a_unit(unit):
    assert not re.search(r"mysql://|--shard|sz_|whsec_", unit.read_text())


def test_the_engine_may_drain_to_its_end():
    """Executors first, then the keeper."""
    (stop,) = settings_of(FOLDER / "secondzero-engine.service")["TimeoutStopSec"]
    assert int(stop) * 1000 > 2 * DRAIN_MS_MAX


@needs_systemd
def test_systemd_knows_everything_in_a_unit(unit, tmp_path):
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, shutil.which("true")))
    ended = analyze("verify", str(copy))
    assert (ended.returncode, ended.stderr) == (0, "")


@needs_systemd
def test_p9_a_unit_is_hardly_exposed_by_systemds_own_count(unit):
    ended = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit))
    assert ended.returncode == 0, ended.stdout


def analyze(*words):
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)
