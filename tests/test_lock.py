"""The lock agrees with pyproject.toml, holds a hash for everything, and the bill of materials names all of it."""

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import orjson
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RENEW = "run `make lock`"


def sbom():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked():
    """Every locked package; one that differs by Python or platform stands there more than once."""
    return sbom().read_lock(LOCK)


def versions_of():
    found = {}
    for package in locked():
        found.setdefault(package.name, set()).add(package.version)
    return found


def asked():
    """Everything that pyproject.toml asks for."""
    project = PROJECT["project"]
    texts = PROJECT["build-system"]["requires"] + project["dependencies"]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    return [Requirement(text) for text in texts]


def test_every_pinned_dependency_is_locked_at_its_version():
    versions = versions_of()
    for requirement in asked():
        (pin,) = requirement.specifier
        assert pin.operator == "==", f"{requirement} is not pinned exactly"
        assert pin.version in versions.get(canonicalize_name(requirement.name), ()), RENEW


def test_what_the_locked_packages_need_is_locked_and_fits():
    versions = versions_of()
    names = [(requirement.name, requirement.extras) for requirement in asked()]
    seen = set()
    while names:
        name, extras = names.pop()
        if (name, frozenset(extras)) in seen:
            continue
        seen.add((name, frozenset(extras)))
        try:
            needed = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            continue  # not installed here: the pins above were compared all the same
        for need in needed:
            wanted = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if need.marker is None or any(need.marker.evaluate(extra) for extra in wanted):
                there = versions.get(canonicalize_name(need.name), ())
                assert any(need.specifier.contains(each, prereleases=True) for each in there), RENEW
                names.append((canonicalize_name(need.name), need.extras))


def test_what_is_installed_is_what_is_locked():
    """Or the tests would speak of something else."""
    builders = {canonicalize_name(Requirement(text).name) for text in PROJECT["build-system"]["requires"]}
    for name, there in versions_of().items():
        try:
            assert name in builders or version(name) in there, f"{name}: `make build` installs the locked version"
        except PackageNotFoundError:
            continue


def test_every_locked_package_has_hashes_and_the_lock_names_no_place():
    packages = locked()
    assert len(packages) > len(asked()) / 2
    assert [package.name for package in packages if not package.hashes] == []
    assert len(packages) == len(re.findall(r"^[A-Za-z0-9]", LOCK, re.MULTILINE))
    assert not re.search(r"https?:|index-url|find-links", LOCK)


def test_the_bill_of_materials_names_every_locked_package():
    document = orjson.loads(orjson.dumps(sbom().document(ROOT)))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    named = {(component["name"], component["version"]) for component in document["components"]}
    assert named == {(package.name, package.version) for package in locked()}
    assert all(component["hashes"] for component in document["components"])


@pytest.mark.parametrize(
    ("name", "scope"),
    [("cryptography", "required"), ("h11", "required"), ("pytest", "excluded"), ("aiohttp", "excluded")],
)
def test_the_bill_tells_what_the_service_runs_on_from_what_tests_it(name, scope):
    (component,) = [each for each in sbom().document(ROOT)["components"] if each["name"] == name]
    assert component["scope"] == scope
