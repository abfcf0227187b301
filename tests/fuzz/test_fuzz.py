"""Each fuzz target for a moment, and whether the fuzzing finds what is planted. A minute each: `make fuzz`."""

import json

import pytest

from api import strict_json
from engine._native import wire
from engine.outbound import target
from engine.rules import target_text
from tests.fuzz.run import run
from tests.fuzz.targets import TARGETS

SECONDS = 0.5
# Planted faults are found within the first second; a busy machine may take longer.
FOUND_S_MAX = 20


@pytest.mark.parametrize("name", TARGETS)
def test_p9_random_input_finds_nothing(name, capsys):
    tried = run(TARGETS[name], SECONDS)
    with capsys.disabled():
        print(f" [{name} {tried:,}]", end="", flush=True)


def lines_as_they_come(method, path, fields):
    return b"%b %b HTTP/1.1\r\n" % (method, path) + b"".join(b"%b: %b\r\n" % field for field in fields)


def without(table, name):
    return tuple(entry for entry in table if str(entry[0]) != name)


@pytest.mark.parametrize(
    ("name", "module", "attribute", "planted"),
    [
        ("wire_writer", wire, "fixed_head", lines_as_they_come),
        ("url", target_text, "_refused_quad", lambda written, quad: None),
        ("url", target_text, "_refused_name", lambda name: None),
        ("address", target, "SPECIAL_IPV4", without(target.SPECIAL_IPV4, "100.64.0.0/10")),
        ("address", target, "SPECIAL_IPV6", without(target.SPECIAL_IPV6, "2001:db8::/32")),
        ("json", strict_json, "_KEYS_ONLY", json.JSONDecoder()),
        ("json", strict_json, "DEPTH_MAX", 10**9),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, name, module, attribute, planted):
    target_text._read_base.cache_clear()
    monkeypatch.setattr(module, attribute, planted)
    try:
        with pytest.raises(Exception) as found:  # noqa: PT011 - several at once are a group
            run(TARGETS[name], FOUND_S_MAX, shrink=False)
        assert not isinstance(found.value, TypeError)
    finally:
        target_text._read_base.cache_clear()
