"""`secondzero pause`, `resume`, `block`, `unblock` and `brakes`, as an operator types them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.commands.brakes import this_user
from tests.commands.test_tenant import Operator
from tests.support.api import ApiServer, served
from tests.support.mysql import SchemaPool


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second, served([first, second]) as server:
        yield server


@pytest.fixture
def operator(api_server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(api_server, capsys)


def test_everything_is_stopped_and_let_go_and_who_did_is_on_record(operator: Operator) -> None:
    pulled = operator.types("pause", "--all", "--note", "restored from backup")
    assert (pulled["stops"], pulled["in_force"], pulled["pulled_by"]) == ("all", True, this_user())
    assert operator.types("pause", "--all", "--who", "eve") == pulled
    assert operator.types("resume", "--all", "--who", "bob") == {"was_in_force": True, "released_by": "bob"}
    assert operator.types("resume", "--all", "--who", "bob")["was_in_force"] is False
    (used,) = operator.types("brakes")["brakes"]
    assert (used["note"], used["released_by"], used["in_force"]) == ("restored from backup", "bob", False)
    status, out, _ = operator.tries("brakes")
    assert status == 0
    assert "restored from backup" in out


def test_a_tenants_jobs_are_paused_over_all_shards_and_resumed(operator: Operator, api_server: ApiServer) -> None:
    operator.types("tenant", "create", "acme")
    acme = api_server.tenant()
    acme.tenant_id = api_server.first_rows("SELECT tenant_id FROM tenants WHERE name = 'acme'")[0][0]
    acme.key = operator.types("key", "create", "--tenant", "acme")["api_key"]
    for number in range(8):
        acme.put(f"job-{number}")
    assert operator.types("pause", "--tenant", "acme", "--note", "abuse")["jobs_paused"] == 8
    paused = acme.job("job-3")
    assert (paused["state"], paused["note"]) == ("paused", "paused by the operator: abuse")
    assert operator.types("resume", "--tenant", "acme")["jobs_resumed"] == 8
    assert acme.job("job-3")["state"] == "active"
    status, _, err = operator.tries("pause", "--tenant", "nobody")
    assert (status, err) == (1, "secondzero: there is no tenant nobody; secondzero tenant list shows those there are\n")


def test_an_origin_is_blocked_under_its_one_spelling(operator: Operator) -> None:
    blocked = operator.types("block", "HTTPS://Example.com")
    assert (blocked["stops"], blocked["what"]) == ("origin", "https://example.com:443")
    assert operator.types("unblock", "https://example.com:443/")["was_in_force"] is True


@pytest.mark.parametrize(
    "words",
    [
        ("pause",),
        ("resume", "--all", "--tenant", "acme"),
        ("block", "example.com"),
        ("block", "https://example.com/path"),
        ("block", "https://user@example.com"),
        ("pause", "--all", "--note", "n" * 256),
        ("resume", "--all", "--who", "w" * 256),
    ],
)
def test_wrong_usage_is_said_in_one_line_and_changes_nothing(operator: Operator, words: tuple[str, ...]) -> None:
    status, out, err = operator.tries(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
