"""How the things that tenants name may be spelled."""

from __future__ import annotations

import re

from api.fields import Reading, Text
from engine.errors import Fault

NAME = Text(
    128,
    re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}"),
    "a name: a letter or digit, then up to 127 letters, digits, dots, underscores or hyphens",
    "nightly-report",
)


def name_faults(name: str) -> list[Fault]:
    """What is wrong with a job's name, with the rule; none if it is one."""
    reading = Reading(0)
    NAME.read(name, "/name", reading)
    return reading.faults


NAME_PREFIX = Text(
    128,
    re.compile("[A-Za-z0-9._-]{0,128}"),
    "the beginning of a name: letters, digits, dots, underscores, hyphens",
    "nightly-",
)

_PLAIN = r"[^\x00-\x1f\x7f]"

LABEL_NAME = Text(
    64, re.compile("[A-Za-z0-9][A-Za-z0-9._/-]{0,63}"), "a label's name: letters, digits and ._/-", "team"
)
LABEL_VALUE = Text(
    256, re.compile(rf"(?! ){_PLAIN}*(?<! )|"), "a label's value: no controls, no space at either end", "billing"
)
