"""Functions that workers ask for are remembered within bounds, for every tenant."""

from __future__ import annotations

from engine.stages.door import FUNCTIONS_MAX, FUNCTIONS_PER_TENANT_MAX, REMEMBERED_MS, Asked

NOW_MS = 1_796_083_200_000


def names(tenant_id: int, count: int, prefix: str = "f") -> list[tuple[int, str]]:
    return [(tenant_id, f"{prefix}{n}") for n in range(count)]


def test_p6_a_tenant_that_asks_for_ever_other_names_is_remembered_for_its_share_alone() -> None:
    asked = Asked()
    asked.note(names(1, FUNCTIONS_PER_TENANT_MAX), NOW_MS)
    asked.note([*names(1, FUNCTIONS_PER_TENANT_MAX, "other"), (2, "mine")], NOW_MS + 1)
    assert sum(tenant_id == 1 for tenant_id, _ in asked.at_ms) == FUNCTIONS_PER_TENANT_MAX
    assert asked.at_ms[2, "mine"] == NOW_MS + 1
    assert (1, "other0") not in asked.at_ms
    # What it goes on to ask for stays; the rest makes room after an hour.
    asked.note([(1, "f0")], NOW_MS + REMEMBERED_MS)
    asked.note([(1, "other0")], NOW_MS + REMEMBERED_MS + 2)
    assert asked.at_ms == {(1, "f0"): NOW_MS + REMEMBERED_MS, (1, "other0"): NOW_MS + REMEMBERED_MS + 2}


def test_of_all_tenants_the_newest_are_remembered() -> None:
    asked = Asked()
    tenants = FUNCTIONS_MAX // FUNCTIONS_PER_TENANT_MAX + 1
    for tenant_id in range(tenants):
        asked.note(names(tenant_id, FUNCTIONS_PER_TENANT_MAX), NOW_MS + tenant_id)
    assert len(asked.at_ms) == FUNCTIONS_MAX
    assert {tenant_id for tenant_id, _ in asked.at_ms} == set(range(1, tenants))
    # And whoever has been forgotten has its whole share again.
    asked.note(names(0, FUNCTIONS_PER_TENANT_MAX), NOW_MS + tenants)
    assert sum(tenant_id == 0 for tenant_id, _ in asked.at_ms) == FUNCTIONS_PER_TENANT_MAX
