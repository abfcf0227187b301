"""`secondzero grants`, as it is typed."""

import orjson
import pytest

from engine.__main__ import main
from engine.store.grants import PARTS


def grants(capsys, *words):
    assert main(["grants", *words]) == 0
    return capsys.readouterr().out


def test_every_account_is_printed_as_sql(capsys):
    lines = grants(capsys).splitlines()
    assert all(line.startswith(("CREATE USER ", "GRANT ")) and line.endswith(";") for line in lines)
    assert sum(line.startswith("CREATE USER ") for line in lines) == len(PARTS)


def test_a_part_a_place_and_tls_can_be_asked_for(capsys):
    document = orjson.loads(grants(capsys, "api", "--database", "d", "--host", "10.%", "--tls", "--other", "--json"))
    assert list(document["accounts"]) == ["api"]
    make, *rights = document["accounts"]["api"]
    assert make == "CREATE USER IF NOT EXISTS 'secondzero_api'@'10.%' IDENTIFIED BY RANDOM PASSWORD REQUIRE SSL"
    assert "GRANT SELECT ON `d`.`fleet` TO 'secondzero_api'@'10.%'" in rights
    assert "tenants" not in " ".join(rights)


def test_a_part_that_is_none_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["grants", "root"])
    assert caught.value.code == 2
    assert "no such part: root" in capsys.readouterr().err
