"""Jobs as a file that can live in version control: YAML (of which JSON is a part), one entry for each name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from engine.errors import OperatorError

FILE_BYTES_MAX = 64 << 20


class _Loader(yaml.SafeLoader):
    """Times stay text, and a key that stands twice is a mistake."""


class _Dumper(yaml.SafeDumper):
    """Long texts on several lines."""


def read_jobs(path: Path) -> dict[str, Any]:
    """{name: job} of a file ``{jobs: {NAME: {schedule: …, target: …}}}``; OperatorError says what is wrong where."""
    document = _read(path)
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, dict) or set(document) != {"jobs"}:
        raise OperatorError(f"{path}: must have one key, jobs, with an entry for each job by its name")
    for name, job in jobs.items():
        if not isinstance(name, str) or not isinstance(job, dict):
            raise OperatorError(f"{path}: jobs: {name!r} must be a text with an object")
    return jobs


def read_one_job(path: Path) -> Any:
    """A single job; ``-`` is standard input."""
    return _read(path)


def dump_jobs(jobs: dict[str, Any]) -> str:
    """The file of these jobs."""
    return yaml.dump({"jobs": jobs}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _read(path: Path) -> Any:
    try:
        if str(path) == "-":
            return yaml.load(sys.stdin.read(FILE_BYTES_MAX), _Loader)  # noqa: S506 - a SafeLoader
        if path.stat().st_size > FILE_BYTES_MAX:
            raise OperatorError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MB")
        return yaml.load(path.read_text(), _Loader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise OperatorError(f"{path}: {' '.join(str(error).split())}") from error


def _construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} is no text; quote it", key_node.start_mark)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"{key} stands twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Dumper.add_representer(str, _represent_text)
