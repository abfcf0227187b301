"""Both clients against a real API: every call is there, lists are walked, and a call tried again has one effect."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime

import pytest

from api.calls import CALLS
from secondzero_client import (
    AsyncClient,
    Client,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    RetryPolicy,
    Unavailable,
    etag,
)
from tests.client.conftest import QUICK
from tests.support.api import Tenant
from tests.support.relay import LOST, Fault, Relay

JOB = {
    "schedule": {"cron": "0 9 * * *", "time_zone": "Europe/Paris"},
    "target": {"http": {"url": "https://example.com/"}},
}
OVER_S = 0.3


def test_both_clients_have_every_call_of_the_api() -> None:
    """Where one is missing: a function in client/secondzero_client/calls.py, and its line in client.py."""
    for kind in (Client, AsyncClient):
        missing = [doc.name for doc in CALLS.values() if not callable(getattr(kind, doc.name, None))]
        assert missing == []


def test_a_call_shows_its_arguments_and_says_what_it_does(client: Client) -> None:
    assert list(inspect.signature(client.put_job).parameters) == ["name", "job", "if_match", "if_none_match"]
    assert client.put_job.__doc__.startswith("Create or edit a job.")


def test_a_job_is_created_changed_paused_run_and_deleted(client: Client) -> None:
    created = client.put_job("report", JOB, if_none_match="*")
    assert client.get_job("report")["version"] == created["version"] == 1
    with pytest.raises(PreconditionFailed):
        client.put_job("report", JOB, if_none_match="*")
    patched = client.patch_job("report", {"labels": {"team": "billing"}}, if_match=etag(created))
    assert patched["labels"] == {"team": "billing"}
    assert client.pause_job("report", note="for now")["state"] == "paused"
    run = client.run_job("report")
    assert client.cancel_run("report", run["scheduled_at"])["state"] == "cancelled"
    assert client.get_run("report", run["scheduled_at"])["attempt_list"] == []
    with pytest.raises(Conflict):
        client.retry_run("report", run["scheduled_at"])
    assert [each["state"] for each in client.list_runs("report")] == ["cancelled"]
    assert client.resume_job("report", missed_runs="skip")["state"] == "active"
    assert client.delete_job("report")["job_id"] == created["job_id"]
    with pytest.raises(NotFound):
        client.get_job("report")


def test_what_is_no_job_is_answered_with_every_fault(client: Client) -> None:
    with pytest.raises(Invalid) as refused:
        client.put_job("report", {"schedule": {"cron": "x"}, "target": {"http": {"url": "ftp://x"}}})
    assert {fault["pointer"] for fault in refused.value.errors} == {"/schedule/cron", "/target/http/url"}
    assert "/schedule/cron" in str(refused.value)


def test_every_other_call_is_answered(client: Client, tenant: Tenant) -> None:
    results = client.batch_jobs(puts=[{"name": "a", "job": JOB}, {"name": "b", "job": JOB}], deletes=["c"])
    assert [each["status"] for each in results["results"]] == [201, 201, 404]
    after = datetime(2027, 3, 27, 12, tzinfo=UTC)
    preview = client.preview_cron("30 2 * * *", time_zone="Europe/Berlin", after=after, n=1)
    assert preview["times"] == [
        {"time": "2027-03-28T01:00:00Z", "local": preview["times"][0]["local"], "clock_change": "moved"}
    ]
    assert list(client.list_dead_letters(job="a", scheduled_from=after)) == []
    assert client.retry_dead_letters(name_prefix="a", dry_run=True) == {"count": 0, "more": False}
    assert client.delete_dead_letters(job="a") == {"count": 0, "more": False}
    assert list(client.list_clock_changes(within="P1D")) == []
    assert client.get_forecast()["complete"] is True
    assert client.get_usage()["used"]["jobs"] == 2
    assert client.get_job_stats("a")["last_day"]["complete"] is True
    first = client.list_signing_secrets()["signing_secrets"]
    assert len(client.rotate_signing_secret(keep_old_for="1h")["signing_secrets"]) == len(first) + 1
    assert client.get_livez() == {"live": True}
    assert client.get_readyz()["ready"] is True


def test_a_list_is_walked_page_by_page_and_no_further_than_asked(client: Client, relay: Relay) -> None:
    names = [f"job-{number}" for number in range(5)]
    client.batch_jobs(puts=[{"name": name, "job": JOB} for name in names])
    relay.fail_next()
    jobs = client.list_jobs(name_prefix="job-", page_size=2)
    assert relay.seen == []
    assert next(jobs)["name"] == "job-0"
    assert len(relay.seen) == 1
    assert [job["name"] for job in jobs] == names[1:]
    assert len(relay.seen) == 3


def test_the_async_client_does_the_same(relay: Relay, tenant: Tenant) -> None:
    async def use() -> None:
        async with AsyncClient(relay.url, tenant.key, retries=QUICK) as client:
            await asyncio.gather(*(client.put_job(f"async-{number}", JOB) for number in range(3)))
            relay.fail_next(Fault(503), LOST, Fault(429, "0"))
            run = await client.run_job("async-1")
            assert [each async for each in client.list_runs("async-1")] == [run]
            assert [job["name"] async for job in client.list_jobs(page_size=1)] == ["async-0", "async-1", "async-2"]
            with pytest.raises(NotFound):
                await client.get_job("nobody")

    asyncio.run(use())


def test_a_key_that_is_none_is_refused_at_once(relay: Relay) -> None:
    with Client(relay.url, "sz_wrong", retries=QUICK) as stranger, pytest.raises(NotAllowed):
        stranger.get_usage()
    assert len(relay.seen) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_call_turned_away_is_tried_again(client: Client, relay: Relay, status: int) -> None:
    relay.fail_next(Fault(status), Fault(status))
    assert client.put_job("again", JOB)["version"] == 1
    assert len(relay.seen) == 3


def test_no_try_comes_before_retry_after(client: Client, relay: Relay) -> None:
    client.put_job("patient", JOB)
    relay.fail_next(Fault(503, "1"))
    loop_s = asyncio.new_event_loop().time
    began_s = loop_s()
    client.get_job("patient")
    assert loop_s() - began_s >= 1


def test_a_post_whose_answer_is_lost_has_one_effect(client: Client, relay: Relay) -> None:
    client.put_job("once", JOB)
    relay.fail_next(LOST, LOST)
    run = client.run_job("once")
    assert len({headers["idempotency-key"] for _, _, headers in relay.seen}) == 1
    assert len(relay.seen) == 3
    assert [each["scheduled_at"] for each in client.list_runs("once")] == [run["scheduled_at"]]


def test_a_post_that_is_still_being_carried_out_is_asked_for_again(client: Client, relay: Relay) -> None:
    client.put_job("still", JOB)
    relay.fail_next(LOST, Fault(409, "0"), Fault(409))
    with pytest.raises(Conflict):
        client.pause_job("still")
    assert len(relay.seen) == 3


def test_a_delete_whose_answer_is_lost_is_done(client: Client, relay: Relay) -> None:
    client.put_job("gone", JOB)
    relay.fail_next(LOST)
    assert client.delete_job("gone") is None
    with pytest.raises(NotFound):
        client.delete_job("gone")


def test_a_conditional_call_whose_answer_is_lost_is_not_sent_again(client: Client, relay: Relay) -> None:
    relay.fail_next(LOST)
    with pytest.raises(Unavailable):
        client.put_job("conditional", JOB, if_none_match="*")
    assert len(relay.seen) == 1
    relay.fail_next(Fault(429))
    assert client.patch_job("conditional", {"description": "x"}, if_match="*")["version"] == 2


def test_a_call_is_given_up_after_its_time(relay: Relay, tenant: Tenant) -> None:
    relay.fail_next(*[Fault(503)] * 1_000)
    policy = RetryPolicy(total_s=OVER_S, first_pause_s=0.01, pause_s_max=0.05)
    with Client(relay.url, tenant.key, retries=policy) as hurried, pytest.raises(Unavailable, match="503"):
        hurried.get_usage()
    assert 1 < len(relay.seen) < 1_000


def test_a_retry_after_beyond_its_time_is_not_waited_for(relay: Relay, tenant: Tenant) -> None:
    relay.fail_next(Fault(503, "3600"))
    with Client(relay.url, tenant.key, retries=QUICK) as client, pytest.raises(Unavailable):
        client.get_usage()
    assert len(relay.seen) == 1


def test_an_api_that_is_away_is_unavailable() -> None:
    policy = RetryPolicy(total_s=OVER_S, first_pause_s=0.01)
    with Client("http://127.0.0.1:9", "sz_x", retries=policy) as client, pytest.raises(Unavailable, match="refused"):
        client.get_usage()


def test_a_connection_that_the_server_closed_is_not_used(client: Client, relay: Relay) -> None:
    """Its next call may not be one that can be repeated."""
    client.put_job("idle", JOB)
    relay.fail_next(LOST)
    client.get_job("idle")
    relay.fail_next()
    client.put_job("idle-too", JOB, if_none_match="*")
    assert len(relay.seen) == 1


def test_a_time_without_a_zone_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        client.get_run("report", datetime(2030, 1, 31))  # noqa: DTZ001 - that is the fault
