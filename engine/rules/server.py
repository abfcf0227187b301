"""Which MySQL server will do, judged by what it says of itself."""

from __future__ import annotations

import re
from typing import NamedTuple

# VALUES ROW(…) as a joined table, on which the batch statements rest, came with this version.
VERSION_MIN = (8, 0, 19)
VERSION_MIN_TEXT = ".".join(map(str, VERSION_MIN))

_NEEDED = f"MySQL {VERSION_MIN_TEXT} or newer is needed"


class ServerFacts(NamedTuple):
    """The answer of the statement `server_facts`, column by column."""

    innodb: str | None
    sql_mode: str
    character_set: str
    performance_schema: int


def version_problem(text: str) -> str | None:
    """What is wrong with a server that calls itself this (`8.0.36-0ubuntu0.22.04.1`, `10.11.6-MariaDB`), or None."""
    if "mariadb" in text.lower():
        return f"it is MariaDB ({text}); {_NEEDED}"
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if not found:
        return f"it calls itself {text!r}; {_NEEDED}"
    if tuple(map(int, found.groups())) < VERSION_MIN:
        return f"it is MySQL {found[0]}; {_NEEDED}"
    return None


def server_problems(facts: ServerFacts) -> list[str]:
    """Each thing that keeps a server of the right version from being a shard: what is, what must be, how."""
    problems = []
    if facts.innodb not in ("YES", "DEFAULT"):
        problems.append("InnoDB is switched off: remove `disabled_storage_engines` from its settings")
    if "STRICT_ALL_TABLES" not in facts.sql_mode.split(","):
        problems.append(
            f"sql_mode stays {facts.sql_mode!r} though the session set STRICT_ALL_TABLES: is a proxy between?"
        )
    if facts.character_set != "utf8mb4":
        problems.append(f"the database has character set {facts.character_set}: ALTER DATABASE … CHARACTER SET utf8mb4")
    if not facts.performance_schema:
        problems.append("performance_schema is off: switch it on, dropping an old day asks it who still reads there")
    return problems
