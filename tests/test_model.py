"""The nouns: ids that no two jobs share, definitions that survive their stored form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.model import (
    Cron,
    Definition,
    FunctionTarget,
    HeaderValue,
    HttpTarget,
    Priority,
    RunAt,
    idempotency_key,
    job_id_text,
    mint_job_id,
    partition_of,
)

NOW_MS = 1_796_083_200_000


def test_ten_thousand_job_ids_of_one_millisecond_and_partition_are_distinct_and_fit_63_bits() -> None:
    minted = [mint_job_id(NOW_MS, 1023) for _ in range(10_000)]
    assert len(set(minted)) == len(minted)
    assert minted == sorted(minted)
    assert max(minted) < 2**63


def test_job_ids_of_two_partitions_never_meet() -> None:
    ours = {mint_job_id(NOW_MS + 50_000, 1) for _ in range(5_000)}
    assert not ours & {mint_job_id(NOW_MS + 50_000, 2) for _ in range(5_000)}


def test_an_idempotency_key_has_no_dots_and_names_one_run() -> None:
    key = idempotency_key(mint_job_id(NOW_MS, 5), NOW_MS)
    assert "." not in key
    assert key != idempotency_key(mint_job_id(NOW_MS, 5), NOW_MS)
    assert len(job_id_text(1)) == 16


@given(st.integers(1, 2**31), st.text(max_size=128), st.integers(1, 1024))
def test_a_partition_lies_within_the_fleets_count_and_never_moves(tenant_id: int, name: str, count: int) -> None:
    assert 0 <= partition_of(tenant_id, name, count) < count
    assert partition_of(tenant_id, name, count) == partition_of(tenant_id, name, count)


@given(st.binary(max_size=300), st.booleans())
def test_a_stored_definition_comes_back_equal(body: bytes, secret: bool) -> None:
    headers = (("X-Token", HeaderValue("abc", secret)),)
    target = HttpTarget("https://example.com/", headers=headers, body=body, body_is_text=False)
    definition = Definition(Cron("0 9 * * *", "Europe/Paris", 0, None), target, Priority.HIGH, labels=(("a", "b"),))
    assert Definition.decode(definition.encode()) == definition


def test_a_function_target_and_a_single_time_come_back_equal() -> None:
    definition = Definition(RunAt(NOW_MS), FunctionTarget("reports.daily", {"day": 1}))
    assert Definition.decode(definition.encode()) == definition
