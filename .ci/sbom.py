"""Writes the bill of materials: every locked package with its hashes, as CycloneDX 1.6 JSON, into build/sbom.json.

What the service itself needs is `required`; what only builds, tests or measures it is `excluded`.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, NamedTuple

import orjson

ROOT = Path(__file__).parent.parent
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)


class Locked(NamedTuple):
    """One package of the lock; ``hashes`` are SHA-256 of its files, in hex."""

    name: str
    version: str
    hashes: tuple[str, ...]


def main() -> None:
    target = ROOT / "build" / "sbom.json"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(orjson.dumps(document(ROOT), option=orjson.OPT_INDENT_2))


def document(root: Path) -> dict[str, Any]:
    """The bill of a checkout; the same for the same lock."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    locked = read_lock((root / "requirements.lock").read_text())
    served = _closure([_name(text) for text in project["dependencies"]])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": project["name"],
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [_component(package, package.name in served) for package in locked],
        "dependencies": [
            {"ref": project["name"], "dependsOn": [_ref(package) for package in locked if package.name in served]}
        ],
    }


def read_lock(text: str) -> list[Locked]:
    """The packages of a lock, in its order."""
    return [
        Locked(_name(name), version, tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)))
        for name, version, rest in _PINNED.findall(text)
    ]


def _closure(names: list[str]) -> set[str]:
    """These packages and what they need here, as it is installed."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += _needs(name)
    return found


def _needs(name: str) -> list[str]:
    try:
        return [_name(text) for text in requires(name) or [] if "extra ==" not in text]
    except PackageNotFoundError:  # for another platform or Python
        return []


def _name(requirement: str) -> str:
    """The package that a requirement asks for, in its normal spelling."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


def _component(package: Locked, served: bool) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": _ref(package),
        "name": package.name,
        "version": package.version,
        "purl": _ref(package),
        "scope": "required" if served else "excluded",
        "hashes": [{"alg": "SHA-256", "content": content} for content in package.hashes],
    }


def _ref(package: Locked) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


if __name__ == "__main__":
    main()
