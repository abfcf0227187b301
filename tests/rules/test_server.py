"""Which servers will do."""

import pytest

from engine.rules.server import ServerFacts, server_problems, version_problem

GOOD = ServerFacts("DEFAULT", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION", "utf8mb4", 1)


@pytest.mark.parametrize("text", ["8.0.19", "8.0.36-0ubuntu0.22.04.1", "8.4.3-Percona", "9.7.4-2", "10.0.0"])
def test_mysql_from_8_0_19_on_will_do(text: str) -> None:
    assert version_problem(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.11.6-MariaDB-0+deb12u1", "it is MariaDB (10.11.6-MariaDB-0+deb12u1); MySQL 8.0.19 or newer is needed"),
        ("8.0.18", "it is MySQL 8.0.18; MySQL 8.0.19 or newer is needed"),
        ("5.7.44-log", "it is MySQL 5.7.44; MySQL 8.0.19 or newer is needed"),
        ("8.0.11-TiDB-v7.5.0", "it is MySQL 8.0.11; MySQL 8.0.19 or newer is needed"),
        ("", "it calls itself ''; MySQL 8.0.19 or newer is needed"),
    ],
)
def test_others_are_refused_with_what_they_are_and_what_is_needed(text: str, said: str) -> None:
    assert version_problem(text) == said


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (GOOD._replace(innodb="NO"), "InnoDB"),
        (GOOD._replace(innodb=None), "InnoDB"),
        (GOOD._replace(sql_mode=""), "STRICT_ALL_TABLES"),
        (GOOD._replace(character_set="latin1"), "latin1"),
        (GOOD._replace(performance_schema=0), "performance_schema"),
    ],
)
def test_each_wrong_setting_is_one_problem(facts: ServerFacts, word: str) -> None:
    (problem,) = server_problems(facts)
    assert word in problem


def test_all_wrong_settings_are_listed_at_once() -> None:
    assert len(server_problems(ServerFacts("NO", "", "latin1", 0))) == len(ServerFacts._fields)
    assert server_problems(GOOD) == []
