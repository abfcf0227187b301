"""The load for people: its calls are answered, and seven of ten of them read."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.api import Reply, Tenant, served
from tests.support.mysql import SchemaPool

FILE = Path(__file__).parents[2] / "bench/locustfile.py"


def weighted(weight: int) -> Any:
    def mark(method: Any) -> Any:
        method.weight = weight
        return method

    return mark


@pytest.fixture
def user_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the file as it stands; locust itself is no part of the tests."""
    locust = ModuleType("locust")
    locust.HttpUser, locust.task, locust.between = object, weighted, lambda low, high: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "locust", locust)
    return runpy.run_path(str(FILE))["TenantUser"]


def tasks(user_class: Any) -> dict[str, int]:
    return {name: method.weight for name, method in vars(user_class).items() if hasattr(method, "weight")}


def test_seven_of_ten_calls_read(user_class: Any) -> None:
    weights = tasks(user_class)
    reads = sum(weights[name] for name in ("read_a_job", "list_jobs", "list_runs", "look_ahead"))
    assert (reads, sum(weights.values())) == (70, 100)


def test_every_call_is_answered(user_class: Any, schema_pool: SchemaPool, monkeypatch: pytest.MonkeyPatch) -> None:
    with schema_pool.schema() as dsn, served([dsn]) as server:
        tenant = server.tenant()
        monkeypatch.setenv("SECONDZERO_API_KEY", str(tenant.key))
        replies: list[Reply] = []
        user = user_class()
        user.client = SimpleNamespace(
            headers={}, request=lambda *words, **more: replies.append(send(tenant, *words, **more))
        )
        user.on_start()
        for name in tasks(user_class):
            for _ in range(4):
                getattr(user, name)()
        user.on_stop()
        assert {reply.status for reply in replies} == {200}
        assert tenant.get("/v1/jobs").json["jobs"] == []


def send(tenant: Tenant, method: str, path: str, name: str, json: Any = None) -> Reply:
    return tenant.call(method, path, json)
