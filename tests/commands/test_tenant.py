"""`secondzero tenant` and `secondzero key` against real shards, and what the API makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from engine.__main__ import main
from tests.support.api import ApiServer, Tenant, served
from tests.support.mysql import SchemaPool
from tests.support.wait import until


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second, served([first, second]) as server:
        yield server


class Operator:
    """Types commands for one fleet."""

    def __init__(self, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._shards = [argument for dsn in server.dsns for argument in ("--shard", dsn.text())]
        self._capsys = capsys

    def types(self, *words: str) -> Any:
        """What a command reports; it must succeed."""
        status, out, err = self.tries(*words, "--json")
        assert (status, err) == (0, "")
        return orjson.loads(out)

    def tries(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        try:
            status = main([*words, *self._shards])
        except SystemExit as ended:
            status = int(str(ended.code))
        return status, *self._capsys.readouterr()


@pytest.fixture
def operator(api_server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(api_server, capsys)


def client(server: ApiServer, api_key: str) -> Tenant:
    tenant = server.tenant()
    tenant.key = api_key
    return tenant


def test_a_tenant_is_created_once_and_its_key_works(operator: Operator, api_server: ApiServer) -> None:
    created = operator.types("tenant", "create", "acme")
    assert created.keys() == {"tenant", "api_key", "signing_secret"}
    acme = client(api_server, created["api_key"])
    assert acme.put("j").status == 201
    assert acme.get("/v1/signing-secrets").json["signing_secrets"][0]["secret"] == created["signing_secret"]
    status, out, err = operator.tries("tenant", "create", "acme", "--json")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "acme" in [tenant["tenant"] for tenant in operator.types("tenant", "list")["tenants"]]


@pytest.mark.parametrize("name", ["", "Acme", "a b", "ü", "-a", "a" * 65])
def test_a_name_that_cannot_be_one_is_wrong_usage(operator: Operator, name: str) -> None:
    assert operator.tries("tenant", "create", f"{name}", "--json")[0] == 2


def test_p9_keys_have_scope_end_and_can_be_revoked_within_seconds(operator: Operator, api_server: ApiServer) -> None:
    operator.types("tenant", "create", "keys")
    read = operator.types("key", "create", "--tenant", "keys", "--scope", "read", "--name", "dashboard")
    brief = operator.types("key", "create", "--tenant", "keys", "--expires", "1ms")
    worker = operator.types("key", "create", "--tenant", "keys", "--scope", "worker:send_report")
    reader = client(api_server, read["api_key"])
    assert reader.get("/v1/jobs").status == 200
    assert reader.put("j").status == 403
    assert reader.call("POST", "/v1/cron:preview", {"cron": "@daily"}).status == 200
    assert reader.get("/v1/signing-secrets").status == 403
    assert client(api_server, brief["api_key"]).get("/v1/jobs").status == 401
    assert client(api_server, worker["api_key"]).get("/v1/jobs").status == 403
    listed = operator.types("key", "list", "--tenant", "keys")["keys"]
    assert [(key["name"], key["scope"]) for key in listed][1:3] == [("dashboard", "read"), ("key", "full")]
    assert read["api_key"] not in orjson.dumps(listed).decode()
    operator.types("key", "revoke", read["id"], "--tenant", "keys")
    until(lambda: reader.get("/v1/jobs").status == 401, seconds=5)


def test_a_rotated_key_works_beside_the_new_one_for_a_while(operator: Operator, api_server: ApiServer) -> None:
    first = operator.types("tenant", "create", "rotating")["api_key"]
    (key,) = operator.types("key", "list", "--tenant", "rotating")["keys"]
    second = operator.types("key", "rotate", key["id"], "--tenant", "rotating")["api_key"]
    assert [client(api_server, each).get("/v1/jobs").status for each in (first, second)] == [200, 200]
    third = operator.types("key", "rotate", second_id(operator), "--tenant", "rotating", "--keep", "0s")["api_key"]
    assert client(api_server, third).get("/v1/jobs").status == 200
    until(lambda: client(api_server, second).get("/v1/jobs").status == 401, seconds=5)


def second_id(operator: Operator) -> str:
    return str(operator.types("key", "list", "--tenant", "rotating")["keys"][1]["id"])


def test_a_key_that_is_not_there_or_not_one_is_said_in_one_line(operator: Operator) -> None:
    operator.types("tenant", "create", "lines")
    for words in (
        ("revoke", "00", "--tenant", "lines"),
        ("list", "--tenant", "nobody"),
        ("revoke", "", "--tenant", "lines"),
    ):
        status, _, err = operator.tries("key", *words)
        assert (status, err.count("\n")) == (1, 1)
    assert operator.tries("key", "create", "--tenant", "lines", "--scope", "all")[0] == 2
    assert operator.tries("key", "create", "--tenant", "lines", "--expires", "soon")[0] == 2
    assert operator.tries("key", "list")[0] == 2


def test_a_disabled_tenants_keys_are_refused_until_it_is_enabled(operator: Operator, api_server: ApiServer) -> None:
    acme = client(api_server, operator.types("tenant", "create", "on-and-off")["api_key"])
    assert acme.put("j").status == 201
    operator.types("tenant", "disable", "on-and-off")
    until(lambda: acme.get("/v1/jobs").status == 403, seconds=5)
    operator.types("tenant", "enable", "on-and-off")
    until(lambda: acme.get("/v1/jobs").status == 200, seconds=5)


def test_limits_and_the_address_of_failures_are_set(operator: Operator, api_server: ApiServer) -> None:
    acme = client(api_server, operator.types("tenant", "create", "limited")["api_key"])
    operator.types("tenant", "set", "limited", "--limit", "jobs=1", "--on-failure", "https://example.com/f")
    until(lambda: acme.get("/v1/usage").json["limits"]["jobs"] == 1, seconds=5)
    assert [acme.put(name).status for name in ("a", "b")] == [201, 409]
    assert (
        operator.types("tenant", "set", "limited", "--limit", "jobs=default")["on_failure"] == "https://example.com/f"
    )
    until(lambda: acme.put("b").status == 201, seconds=5)
    for wrong in ("jobs=x", "job=1", "jobs=-1"):
        assert operator.tries("tenant", "set", "limited", "--limit", wrong)[0] == 2
    assert operator.tries("tenant", "set", "limited", "--on-failure", "ftp://x")[0] == 2


def test_a_deleted_tenant_has_no_jobs_keys_or_name_any_more(operator: Operator, api_server: ApiServer) -> None:
    acme = client(api_server, operator.types("tenant", "create", "going")["api_key"])
    for n in range(5):
        acme.put(f"j{n}")
    assert operator.tries("tenant", "delete", "going")[0] == 2
    assert operator.types("tenant", "delete", "going", "--yes")["jobs_deleted"] == 5
    until(lambda: acme.get("/v1/jobs").status == 401, seconds=5)
    assert operator.tries("tenant", "delete", "going", "--yes")[0] == 1
    again = client(api_server, operator.types("tenant", "create", "going")["api_key"])
    assert again.get("/v1/jobs").json["jobs"] == []
