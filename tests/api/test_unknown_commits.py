"""A connection that breaks at the COMMIT of a change: its caller is told to ask again, and that does no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.config import Dsn
from tests.support.api import ApiServer, served
from tests.support.proxy import CHANGE, PUT, Proxy, proxied

either_way = pytest.mark.parametrize("before", [True, False], ids=["that the server never got", "that the server got"])


@pytest.fixture
def cuttable(shard_dsn: Dsn) -> Iterator[tuple[ApiServer, Proxy]]:
    with proxied(shard_dsn) as (proxy, through), served([through]) as server:
        yield server, proxy


@either_way
def test_p2_a_put_repeated_after_a_lost_answer_makes_one_job(cuttable: tuple[ApiServer, Proxy], before: bool) -> None:
    server, proxy = cuttable
    tenant = server.tenant()
    proxy.cut(PUT, before=before)
    assert tenant.put("daily").status == 503
    again = tenant.put("daily")
    assert again.status == (201 if before else 200)
    assert server.rows("SELECT COUNT(*) FROM jobs") == [(1,)]
    assert server.rows("SELECT version FROM job_versions") == [(1,)]


@either_way
def test_p2_a_pause_repeated_after_a_lost_answer_pauses_once(cuttable: tuple[ApiServer, Proxy], before: bool) -> None:
    server, proxy = cuttable
    tenant = server.tenant()
    tenant.put("daily")
    proxy.cut(CHANGE, before=before)
    assert tenant.call("POST", "/v1/jobs/daily:pause").status == 503
    again = tenant.call("POST", "/v1/jobs/daily:pause")
    assert (again.status, again.json["state"]) == (200, "paused")
    assert server.rows("SELECT version FROM job_versions ORDER BY version") == [(1,), (2,)]
